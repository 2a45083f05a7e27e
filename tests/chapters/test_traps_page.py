"""Section 11 names checks: each exists, each that exists is named, and the fault matrix is in words that the page
explains.
"""

import ast
import csv
import inspect
import re

import pytest

from serving_study import errors, paths
from serving_study.chapters import book
from serving_study.chapters import speculation_plan as speculation
from serving_study.doctor import checks, folder_checks, host_checks
from serving_study.engines import vllm
from serving_study.measure.mechanisms import mechanism
from serving_study.results import certificates

PAGE = re.sub(
    r"^```.*?^```$|\{term\}`[^`]*`", "", (paths.BOOK / "11-traps.md").read_text(), flags=re.MULTILINE | re.DOTALL
)
with open(paths.DATA / "faults.csv", newline="") as _file:
    FAULTS = list(csv.DictReader(_file))
NAMED = re.compile(r"(doctor|certificate|start record): (`[^`]+`(?:, `[^`]+`)*)")
CODE = re.compile(r"`([^`]+)`")
WHEN = {"before", "during", "after"}


def named_in(module, *makers: str) -> set[str]:
    """What a module calls its checks: the first words that it gives to `makers`, with what is filled in in capitals."""
    found = set()
    for call in ast.walk(ast.parse(inspect.getsource(module))):
        maker = isinstance(call, ast.Call) and (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        if maker in makers and call.args:
            parts = call.args[0].values if isinstance(call.args[0], ast.JoinedStr) else [call.args[0]]
            if all(isinstance(part, ast.Constant | ast.FormattedValue) for part in parts):
                found.add(
                    "".join(
                        part.value if isinstance(part, ast.Constant) else ast.unparse(part.value).split(".")[0].upper()
                        for part in parts
                    )
                )
    return found


KNOWN = {
    "doctor": set().union(
        *(
            named_in(module, "Finding", "of_error", "_of_problem", "disk")
            for module in (checks, host_checks, folder_checks)
        )
    ),
    "certificate": named_in(certificates, "Check") | named_in(mechanism, "Check"),
    "start record": {"ok", "failed", "unsupported"},
}
OTHERS = {name for name, kind in vars(errors).items() if isinstance(kind, type)} | set(
    speculation.SpeculativeDecoding.model_fields
)
SETTING = re.compile(r"`([A-Z_]+=\w+)`")


def rows() -> list[list[str]]:
    """The page's tables of traps: trap, how it shows, caught by, when."""
    lines = [
        [cell.strip() for cell in line.strip()[1:-1].split("|")] for line in PAGE.splitlines() if line.startswith("|")
    ]
    return [line for line in lines if len(line) == 4 and line[0] != "trap" and set(line[0]) != {"-"}]


def test_the_names_are_found():
    assert {"memory", "vocabularies", "options of ARM", "disk of the results", "results lock"} <= KNOWN["doctor"]
    # Those of the two lists, the idle servers, the cold caches and the mechanism.
    assert len(KNOWN["certificate"]) == len(certificates.OF_TRAFFIC) + len(certificates.OF_FIGURES) + 3


@pytest.mark.parametrize("kind", KNOWN)
def test_every_check_that_is_named_exists(kind):
    named = {
        name
        for text in (PAGE, "\n".join(row["caught by"] for row in FAULTS))
        for found, names in NAMED.findall(text)
        if found == kind
        for name in CODE.findall(names)
    }
    assert named and named <= KNOWN[kind], named - KNOWN[kind]


def test_what_catches_a_trap_is_named_with_its_kind():
    for caught in [row[2] for row in rows()] + [row["caught by"] for row in FAULTS]:
        assert set(CODE.findall(SETTING.sub("", NAMED.sub("", caught)))) <= OTHERS, caught


def test_a_setting_that_the_page_names_is_one_that_servers_get():
    settings = {setting for row in rows() for setting in SETTING.findall(row[2])}
    source = inspect.getsource(vllm.environment)
    assert settings and all(all(f'"{part}"' in source for part in setting.split("=")) for setting in settings), settings


def test_every_check_is_on_the_page():
    for kind in ("doctor", "certificate"):
        assert KNOWN[kind] <= set(CODE.findall(PAGE)), KNOWN[kind] - set(CODE.findall(PAGE))


def test_every_trap_says_what_catches_it_and_when_or_that_nothing_does():
    assert len(rows()) > 30
    for trap, shows, caught, when in rows():
        assert trap and shows and caught
        assert (when == "") == caught.startswith("nothing yet") and set(filter(None, when.split(", "))) <= WHEN, trap


def test_the_matrix_uses_the_words_that_the_page_explains():
    assert {row["figure"] for row in FAULTS} == {"shown", "withheld", "none"}
    for word in ("*shown*", "*withheld*", "*none*", "*Warden*"):
        assert word in PAGE
    for row in FAULTS:
        assert all(row.values()) and None not in row
        assert (row["figure"] == "shown") == (row["what is lost"] == "nothing")
        assert (row["figure"] == "withheld") == row["caught by"].startswith("certificate: ")


def test_the_page_is_in_the_book_before_the_appendices():
    chapters = book.chapters()
    after = ["book/sections/12-trust", "book/parameters", "book/glossary"]
    assert chapters[chapters.index("book/11-traps") :] == ["book/11-traps", *after]
