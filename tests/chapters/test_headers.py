"""The parameters cell as people leave it: comments, annotations, lost tags, merges, cells of earlier runs."""

import nbformat
import pytest

from serving_study.chapters import headers
from serving_study.errors import ParameterError

HEADER = "host = 'auto'\nks: list[int] | None = [1, 3]\nrepeats = 5  # n = 5\n"


@pytest.fixture
def write(tmp_path):
    """A function that writes a notebook of code cells, each a source and its tags."""

    def made(*cells):
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        parts = [nbformat.v4.new_markdown_cell("# A question")]
        parts += [nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)}) for source, *tags in cells]
        nbformat.write(nbformat.v4.new_notebook(cells=parts, metadata=kernel), tmp_path / "03-a.ipynb")
        return tmp_path / "03-a.ipynb"

    return made


def test_a_header_is_read_as_python_reads_it(write):
    source = HEADER + "".join(
        [
            "slo = {'a': 1,  # = one\n       'b': 2}\n",
            "# arms = ['none']\n",
            "dataset = 'a=b#c'  # x = 'y'\n",
            "seed = -1; port = 0x10\n",
            "model = (\n    'a'\n    'b'\n)\n",
            "repeats = 7\n",
        ]
    )
    assert headers.read(write((source, "parameters"))) == {
        "host": "auto",
        "ks": [1, 3],
        "repeats": 7,
        "slo": {"a": 1, "b": 2},
        "dataset": "a=b#c",
        "seed": -1,
        "port": 16,
        "model": "ab",
    }


def test_a_lost_tag_says_which_cell_lost_it_and_how_to_put_it_back(write):
    notebook = write(("import sys",), (HEADER,), ("print(ks)",))
    with pytest.raises(ParameterError, match="no cell of 03-a.ipynb is tagged parameters") as caught:
        headers.read(notebook, ["host", "ks", "repeats", "seed"])
    assert (
        caught.value.value == "cell 3 looks like the header"
        and caught.value.allowed == "one code cell with the tag parameters"
    )
    assert '"metadata": {"tags": ["parameters"]}' in caught.value.next and "Cell Tags" in caught.value.next


def test_a_notebook_without_a_header_says_so(write):
    with pytest.raises(ParameterError, match="no cell looks like the header"):
        headers.read(write(("print(1)",)), ["host"])


def test_two_tagged_cells_are_one_too_many(write):
    with pytest.raises(ParameterError, match="several cells tagged parameters: cells 2, 3"):
        headers.read(write((HEADER, "parameters"), ("repeats = 1", "parameters")))


def test_the_cell_of_an_earlier_run_is_not_run_again(write):
    with pytest.raises(ParameterError, match="tagged injected-parameters, which would set parameters again: cell 3"):
        headers.read(write((HEADER, "parameters"), ("repeats = 1", "injected-parameters")))


SETS = [
    "repeats = 1",
    "x = 3\nif x:\n    repeats = 1",
    "%matplotlib inline\nfor repeats in (1, 2): pass",
    "host, other = 'a', 'b'",
    "import numpy as ks",
    "from serving_study import hosts as host",
    "repeats += 1",
    "(repeats := 4)",
    "del repeats",
    "def repeats(): pass",
    "with open('x') as host: pass",
]


@pytest.mark.parametrize("source", SETS)
@pytest.mark.parametrize("before", [False, True])
def test_a_parameter_set_by_another_cell_is_refused(write, source, before):
    if before and source.startswith(("del", "repeats +=")):
        pytest.skip("fails in the kernel by itself")
    cells = [(HEADER, "parameters"), (source,)]
    with pytest.raises(ParameterError, match="another cell of 03-a.ipynb sets parameters again") as caught:
        headers.read(write(*(reversed(cells) if before else cells)))
    assert caught.value.value.endswith(f"(cell {2 if before else 3})")


USES = [
    "x = repeats + 1",
    "[host for host in (1, 2)]",
    "{ks: repeats for ks, repeats in {}.items()}",
    "f = lambda repeats: repeats",
    "plan(repeats=repeats)",
    "x.host = 1\nx['ks'] = 2",
    "%%bash\nrepeats=1 echo 'not Python",
]


@pytest.mark.parametrize("source", USES)
def test_a_parameter_may_be_used_and_its_name_bound_inside(write, source):
    assert headers.read(write((HEADER, "parameters"), (source,)))["repeats"] == 5


def test_an_unfinished_merge_is_one_clear_error(write):
    notebook = write((HEADER, "parameters"))
    text = notebook.read_text().replace(
        '  {\n   "cell_type": "code"', '<<<<<<< HEAD\n  {\n   "cell_type": "code"\n=======\n  {\n>>>>>>> other', 1
    )
    notebook.write_text(text)
    lines = [
        number for number, line in enumerate(text.splitlines(), 1) if line[:7] in ("<<<<<<<", "=======", ">>>>>>>")
    ]
    assert len(lines) == 3
    with pytest.raises(ParameterError, match="a merge of this notebook was not finished") as caught:
        headers.read(notebook)
    assert caught.value.value == f"{notebook}, lines {', '.join(map(str, lines))}" and "git" in caught.value.next


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"{", "this notebook is not JSON"),
        (b"[]", "this file is JSON and no notebook"),
        (b'{"worksheets": []}', "this file is JSON and no notebook"),
        (b'{"cells": [1]}', "this file is JSON and no notebook"),
        (b"\xff\xfe", "this notebook cannot be read"),
        (None, "this notebook cannot be read"),
    ],
)
def test_a_file_that_is_no_notebook_is_one_clear_error(tmp_path, content, what):
    notebook = tmp_path / "03-a.ipynb"
    if content is not None:
        notebook.write_bytes(content)
    with pytest.raises(ParameterError, match=what) as caught:
        headers.read(notebook)
    assert caught.value.allowed and caught.value.next
