"""The command line: what it prints, what it refuses, and that the README tells the truth about it."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from serving_study import cli, files, paths
from serving_study.chapters import sections
from serving_study.errors import PriceListError
from serving_study.hardware import ceilings, prices
from serving_study.results import store

RUN = CliRunner()


def call(*words):
    return RUN.invoke(cli.app, words, catch_exceptions=True)


def test_the_sections_are_those_with_a_notebook():
    shown = call("sections").output
    assert [line.split()[0] for line in shown.splitlines()] == [str(number) for number in sections.SECTIONS]
    assert all(section.notebook.is_file() for section in sections.SECTIONS.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "13"), "no notebook for section"),
        (("run", "three"), "no such section"),
        (("run", "3", "-p", "repeats"), "-p wants a name and a value in one word: repeats"),
        (("run", "3", "-p", "repeats", "2"), "-p wants a name and a value in one word: repeats 2"),
        (("run", "3", "4"), "run takes one section: 4"),
        (("run", "3", "-y", "{1: 2}"), "unknown parameter: 1"),
        (("run", "3", "--dry-run", "-p", "repeats=3.5"), "a whole number or None"),
        (("run", "3", "--dry-run", "-p", "prefix_caching=yes"), "True or False"),
        (("run", "3", "-y", "[1, 2]"), "not a mapping"),
        (("run", "3", "-y", "{a: [}"), "not YAML"),
        (("run", "3", "-p", "cheese=1"), "unknown parameter"),
        (("run", "3", "--dry-run", "-p", "ks=3"), "wrong type"),
        (("run", "3", "--dry-run", "-p", "host=h100x8"), "not the host profile"),
        (("run", "3", "--dry-run", "-y", "{arms: [baseline, turbo]}"), "unknown arm"),
        (("run", "3", "--dry-run", "-y", "{prompts: [1]}"), "cannot be used"),
        (("run", "3", "--dry-run", "-p", "model=/no/such/model"), "no model here"),
        (("run", "3", "--dry-run", "-p", "dataset=/no/such/file"), "no such dataset"),
        (("certify", "moon", "3"), "no results"),
    ],
)
def test_bad_input_is_one_clear_error(words, said, results):
    error = call(*words).exception
    assert said in str(error) and "\n  allowed: " in str(error)
    assert not results.exists()


def test_every_example_of_the_help_is_taken(results, monkeypatch):
    monkeypatch.setattr(sections.hosts, "detect", lambda profile="auto": sections.hosts.Host("cpu", "x", 2, 8.0, 7.0))
    examples = re.findall(r"^serving-study (run .+)$", cli.__doc__, re.M)
    examples += [
        f"run 3 {option}"
        for option in re.findall(r"-p \w+=[a-z0-9]+|-y '[^']+'", " ".join(call("run", "--help").output.split()))
    ]
    assert len(examples) >= 3
    for example in examples:
        outcome = call(*shlex.split(example.replace("│", "")), "--dry-run")
        assert outcome.exit_code == 0, (example, outcome.exception)
    assert "NAME VALUE" not in cli.__doc__ + call("run", "--help").output


def test_a_given_value_runs_as_it_is_planned(results, monkeypatch):
    plan, planned, ran = sections.plan, {}, {}
    monkeypatch.setattr(sections.hosts, "detect", lambda profile="auto": sections.hosts.Host("cpu", "x", 2, 8.0, 7.0))
    monkeypatch.setattr(cli.run, "examine", lambda plan: None)

    def dry(number, **values):
        planned.update(values)
        return plan(number, **values | {"dry": True})

    def execute(section, given):
        ran.update(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(sections, "plan", dry)
    monkeypatch.setattr(cli.run, "execute", execute)
    call("run", "3", "-p", "repeats=3.0", "-p", "prefix_caching=true", "-p", "ks=(1, 3)", "--no-book")
    assert ran == {"repeats": 3, "prefix_caching": True, "ks": [1, 3]} == {name: planned[name] for name in ran}
    assert type(ran["repeats"]) is int and ran["prefix_caching"] is True


def test_a_dry_run_says_what_would_be_measured(results, monkeypatch):
    monkeypatch.setattr(sections.hosts, "detect", lambda profile="auto": sections.hosts.Host("cpu", "x", 2, 8.0, 7.0))
    shown = call(
        "run",
        "3",
        "--dry-run",
        "-y",
        "{arms: [baseline, draft-k3], concurrencies: [1, 2], prompts: [2, 4], repeats: 2}",
    )
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[1] == "loads: concurrency 1 (2 prompts), 2 (4 prompts)"
    assert re.fullmatch(
        r"blocks: at least 2 in 2 lives of each arm's servers; servers side by side, all but one frozen: about 2 of 2 "
        r"fit into 7\.0 GiB, \d\.\d GiB each",
        lines[2],
    )
    assert re.fullmatch(r"  baseline  4 cells, 0 measured already, 4 to measure, about \d+\.\d min", lines[3])
    assert re.fullmatch(r"estimated: \d+\.\d minutes", lines[-3])
    assert lines[-2] == "then more blocks of what is not decided, until 9 minutes are spent"
    assert lines[-1] == "to be told apart: known after the first blocks"
    assert not results.exists()


def test_certify_judges_again(results):
    shutil.copytree(paths.RESULTS_PUBLISHED / "h200x1" / "section-3", results / "h200x1" / "section-3")
    known = store.Store("h200x1", 3)
    file = next(file for file in known.cell_files() if files.read(file)["certificate"]["verdict"] == "pass")
    files.write(file, files.read(file) | {"certificate": {"verdict": "fail", "checks": []}})
    assert call("certify", "h200x1", "3").output == "1 verdicts changed\n"
    assert files.read(file)["certificate"]["verdict"] == "pass" and len(files.read(file)["certificate"]["checks"]) == 13


def test_help_and_predictions_load_nothing_that_they_do_not_need():
    heavy = "pandas scipy numpy matplotlib nbformat papermill boto3 pynvml psutil transformers torch".split()
    code = "import sys, {}; print(*[name for name in sys.argv[1:] if name in sys.modules])"

    def loaded(module: str) -> list[str]:
        command = [sys.executable, "-c", code.format(module), *heavy]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert loaded("serving_study.cli") == []
    assert not {"scipy", "matplotlib", "nbformat", "papermill", "boto3", "transformers", "torch"} & set(
        loaded("serving_study.theory.predictions, serving_study.hardware.prices")
    )


def test_a_prediction_has_its_price_and_says_where_it_is_from(cache):
    known = call("predict", "--host", "g6.xlarge", "--model", "Qwen/Qwen2.5-7B-Instruct").output
    assert (
        "price: 0.8048 USD an hour for g6.xlarge in us-east-1 on 2026-09-24 (AWS Price List" in known
        and "USD a million output tokens" in known
    )
    given = json.loads(call("predict", "--host", "l4x1", "--price", "3.6", "--json").output)
    assert given["price"] == {
        "instance": "l4x1",
        "usd_per_hour": 3.6,
        "source": "given",
        "region": None,
        "date": None,
    }
    assert all(row["usd_per_million"] == pytest.approx(1000 / row["output_throughput"]) for row in given["rows"])
    none = call("predict", "--host", "h200x1").output
    assert (
        "price: none known for h200x1 in us-east-1; --price USD_PER_HOUR or --fetch-price adds the cost" in none
        and "USD a million" not in none
    )


def test_a_prediction_says_what_acceptance_it_assumes_or_that_it_knows_none():
    own = call("predict", "--host", "g6.xlarge").output
    assert "acceptance 53.5% assumed" in own and "no acceptance is known" not in own
    others = ["predict", "--host", "g6.xlarge", "--model", "meta-llama-3-8b", "--draft-model", "smollm2-135m-instruct"]
    shown = call(*others, "--acceptance", "draft-k3=0.6").output
    assert shown.count("no acceptance is known for it with these models; --acceptance ") == 3
    assert "--acceptance draft-k1=RATE adds its figures" in shown and "acceptance 60.0% assumed" in shown
    assert "--acceptance wants an arm and a rate: draft-k3" in str(call(*others, "--acceptance", "draft-k3").exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "g6.xlage"), "no ceilings for this host: g6.xlage\n.*\n  next:    did you mean g6.xlarge"),
        (("--host", "p5"), "next:    did you mean p5.48xlarge or p5en.48xlarge?"),
        (
            ("--host", "g6.xlarge", "--model", "Qwen/Qwen2.5-7B-Instrct"),
            "no config.json for this model: .*\n.*\n  next:    did you mean qwen2.5-7b-instruct",
        ),
        (("--host", "g6.xlarge", "--model", "org/zzz"), "next:    hf download org/zzz config.json"),
        (("--host", "g6.xlarge", "--price", "-1"), "--price cannot be used: -1.0"),
        (("--host", "h200x1", "--fetch-price"), "no instance type for this host, so no price to fetch: h200x1"),
    ],
)
def test_a_prediction_for_what_is_not_there_names_what_is_near(words, said, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert re.search(said, str(call("predict", *words).exception))


def test_prices_offline_are_a_table_with_dates(cache):
    shown = call("price", "--offline")
    rows = [re.split(r"  +", line) for line in shown.stdout.splitlines()]
    assert shown.exit_code == 0 and rows[0] == [
        "instance",
        "GPUs",
        "GiB each",
        "USD an hour",
        "USD a GPU-hour",
        "region",
        "date",
        "source",
    ]
    assert [row[0] for row in rows[1:]] == list(ceilings.instances()) and [
        "p4d.24xlarge",
        "8 a100-40",
        "39.5",
        "21.9576",
        "2.7447",
        "us-east-1",
        "2026-09-24",
    ] in [row[:7] for row in rows]
    assert (
        shown.stderr
        == "the AWS Price List was not asked (--offline): what is known here, of 2026-08-26 to 2026-09-24\n"
    )
    nowhere = call("price", "--offline", "--region", "eu-west-1")
    assert (
        nowhere.exit_code == 0
        and nowhere.stderr.endswith(": nothing is known here\n")
        and nowhere.stdout.count("no price is known without AWS") == len(ceilings.instances())
    )


def test_prices_for_programs_keep_their_keys(cache):
    [found] = (told := json.loads(call("price", "l4x1", "--region", "us-west-2", "--offline", "--json").stdout))[
        "prices"
    ]
    assert {name: told[name] for name in told if name != "prices"} == {
        "region": "us-west-2",
        "asked": False,
        "unreachable": None,
    }
    assert {name: found[name] for name in found if name != "source"} == {
        "instance": "g6.xlarge",
        "gpu": "l4",
        "gpus": 1,
        "memory_gib": 22.04,
        "usd_per_hour": 0.8048,
        "usd_per_gpu_hour": 0.8048,
        "region": "us-west-2",
        "date": "2026-09-10",
        "why": None,
    }


def test_where_aws_cannot_be_asked_the_reason_and_the_date_are_told(cache, monkeypatch):
    def refused(instance, region):
        raise PriceListError("the AWS Price List refused", why="it refused (Throttling: slow down)")

    monkeypatch.setattr(prices, "_ask", refused)
    shown = call("price", "g6.xlarge", "--json")
    assert shown.exit_code == 0 and json.loads(shown.stdout)["unreachable"] == "it refused (Throttling: slow down)"
    assert (
        shown.stderr
        == "the AWS Price List could not be asked (it refused (Throttling: slow down)): what is known here, "
        "of 2026-09-24\n"
    )
    assert "no price is known without AWS (it refused (Throttling: slow down)): g6.xlarge in eu-west-1" in str(
        call("price", "g6.xlarge", "--region", "eu-west-1").exception
    )
    assert "p4d comes in one size" in str(call("price", "p4d.xlarge").exception)


def test_the_verbs_of_the_readme_exist():
    verbs = set(re.findall(r"^([a-z]+):.*##", (paths.ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z]+)", (paths.ROOT / "README.md").read_text()))
    assert named <= verbs, named - verbs


def test_every_flag_of_the_readme_and_the_book_exists():
    seen = set()
    for page in (paths.ROOT / "README.md", paths.BOOK / "intro.md"):
        for line in page.read_text().splitlines():
            verb = re.search(r"(?:make|serving-study) (run|plan|doctor|predict|advise|price|compare)\b", line)
            for flag in re.findall(r"(?:ARGS=|run \d )['\"]?(--?[a-z-]+)", line):
                name = {"plan": "run"}.get(verb[1], verb[1]) if verb else "doctor"
                assert flag in call(name, "--help").output, (page.name, line)
                seen.add((name, flag))
    assert {
        ("run", "-p"),
        ("run", "--fresh"),
        ("doctor", "--json"),
        ("predict", "--price"),
        ("price", "--region"),
        ("price", "--json"),
    } <= seen


def test_make_alone_prints_help_and_a_missing_section_lists_them():
    helped = subprocess.run(["make", "-C", paths.ROOT], capture_output=True, text=True)
    assert "make run" in helped.stdout and helped.returncode == 0
    refused = subprocess.run(["make", "-C", paths.ROOT, "plan"], capture_output=True, text=True)
    assert refused.returncode != 0 and "3  Speculative decoding" in refused.stdout


@pytest.mark.parametrize("method", ["draft", "eagle3"])
def test_train_trains_what_it_is_told_to(method, monkeypatch, tmp_path):
    from serving_study.chapters.drafts import distillation, eagle

    monkeypatch.setattr(sections.hosts, "detect", lambda profile="auto": sections.hosts.Host("cpu", "x", 2, 8.0, 7.0))
    asked = {}
    look = {"event": "held_out", "rounds": {"3": {"acceptance_rate": 0.25}}}
    trained = distillation.drafts.Trained(tmp_path, None, {"log": [look]})
    monkeypatch.setattr(distillation, "train", lambda wanted: asked.update(draft=wanted) or trained)
    monkeypatch.setattr(eagle, "train", lambda wanted, head: asked.update(eagle3=wanted) or trained)
    said = call("train", method, "-p", "minutes=2")
    assert said.output == f"{tmp_path}\n  k = 3: acceptance rate 0.250 along held-out answers, temperature 0\n"
    assert list(asked) == [method] and asked[method].minutes == 2


def test_train_refuses_what_it_cannot_train():
    assert "\n  allowed: draft, eagle3" in str(call("train", "eagle2").exception)
    assert "unknown parameter: cheese" in str(call("train", "-p", "cheese=1").exception)
