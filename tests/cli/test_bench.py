"""`serving-study bench`: a section's loads against a server that somebody else started, and what it refuses first."""

import http.server
import json
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import fake_study
import pytest
from fake_study import TIMED
from typer.testing import CliRunner

from serving_study import cli, environments, files
from serving_study.chapters import sections
from serving_study.environments import Environment
from serving_study.errors import ServerError
from serving_study.measure import mechanisms
from serving_study.results import certificates, store
from serving_study.servers import preflight

RUN = CliRunner()
SHORT = ("-p", "repeats=2", "-y", "{concurrencies: [2], prompts: [4], output_tokens: 8}")
OF_PROCESS = {"server", "mechanism", "clocks"}


@pytest.fixture
def tokenizer(study, tmp_path, monkeypatch) -> Path:
    """A tokenizer's folder; the host and the load generator are the fakes'."""
    made = Environment("vllm-cpu", Path(sys.executable), "3.11", {"vllm": "0.32.0"})
    monkeypatch.setattr(sections.hosts, "detect", lambda profile="auto": fake_study.HOST)
    monkeypatch.setattr(environments, "ensure", lambda name, say=print: made)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    fake_study.tokenizer(folder)
    return folder


def call(port: int | str, tokenizer: Path, *words: str, section: str = "3", engine: str = "vllm"):
    url = port if isinstance(port, str) else f"http://127.0.0.1:{port}"
    words = ("--url", url, "--section", section, "--engine", engine, "--tokenizer", str(tokenizer), *words)
    return RUN.invoke(cli.app, ["bench", *words], catch_exceptions=True)


def cells(results: Path) -> list[dict]:
    return [files.read(file) for file in sorted(results.glob("*/*/*/cells/**/repeat=*.json")) if "req" not in file.name]


def outcomes(cell: dict, outcome: str) -> set[str]:
    return {check["name"] for check in cell["certificate"]["checks"] if check["outcome"] == outcome} - TIMED


def test_a_sections_loads_against_a_server_that_runs(tokenizer, results):
    with fake_study.foreign("fake") as port:
        outcome = call(f"http://127.0.0.1:{port}/v1/", tokenizer, *SHORT, "--name", "mine")
    assert outcome.exit_code == 0, outcome.exception
    first, second = cells(results)
    assert {first["repeat"], second["repeat"]} == {0, 1} and first["section"] == 3
    for cell in (first, second):
        assert cell["host"] == "endpoint-mine" and cell["arm"] == "endpoint" and cell["result"]["completed"] == 4
        assert cell["labels"] == {
            "host": "endpoint-mine",
            "weights": "unknown",
            "acceptance": "unknown",
            "engine": "unknown",
            "started_by": "not the study",
        }
        assert cell["certificate"]["verdict"] == "unknown" and not outcomes(cell, certificates.FAIL)
        assert outcomes(cell, certificates.UNKNOWN) == OF_PROCESS - TIMED
        assert cell["counters"]["generated_tokens"] == cell["result"]["total_output_tokens"] > 0
        assert mechanisms.certify(cell, []) and cell["machine"] == {}
    (run,) = results.glob("endpoint-mine/section-3/*Z")
    record = files.read(run / "run.json")
    assert record["server"]["started_by"] == "not the study" and record["server"]["engine"] == "vllm"
    assert record["models"] == {"fake": {"name": "fake", "weights": "unknown"}} and record["ended"]
    assert (run / "cells.csv").read_text().count("endpoint-mine") == 2
    assert (
        "server started by: not the study" in outcome.output and "unknown: mechanism: the server was" in outcome.output
    )
    assert "2,048 tokens of context" in outcome.output


def test_each_call_measures_anew_and_no_list_of_hosts_has_it(tokenizer, results):
    with fake_study.foreign("fake") as port:
        for _ in range(2):
            assert call(port, tokenizer, *SHORT).exit_code == 0
    assert len({cell["key"] for cell in cells(results)}) == 4
    assert len(list(results.glob("endpoint-127.0.0.1-*/section-3/*/run.json"))) == 2
    assert store.measured_hosts(root=results) == []


def test_a_server_of_which_nothing_is_known_has_more_that_is_unknown(tokenizer, results):
    with fake_study.foreign("fake") as port:
        outcome = call(port, tokenizer, *SHORT, engine="openai")
    assert outcome.exit_code == 0, outcome.exception
    assert "its counters are vLLM's: --engine vllm checks more" in outcome.output
    for cell in cells(results):
        assert outcomes(cell, certificates.UNKNOWN) >= {"server", "mechanism", "input tokens", "cold caches"}
        assert not outcomes(cell, certificates.FAIL) and cell["counters"]["generated_tokens"] is None


def test_a_dry_run_sends_no_load(tokenizer, results, study):
    with fake_study.foreign("fake") as port:
        outcome = call(port, tokenizer, *SHORT, "--dry-run")
    assert outcome.exit_code == 0, outcome.exception
    assert "2 cells: 2 blocks of concurrency 2 (4 prompts)" in outcome.output
    assert not results.exists() and not study.events("load")


@contextmanager
def answering(pages: dict[str, tuple[int, bytes]]):
    """A web server with these pages; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, content = pages.get(self.path, (404, b"{}"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


MODELS = json.dumps({"data": [{"id": "a"}, {"id": "b"}]}).encode()
ONE = json.dumps({"data": [{"id": "fake"}]}).encode()
ANSWER = json.dumps({"choices": [{"text": "Paris"}], "usage": {"completion_tokens": 24}}).encode()


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ({}, "this is no server with OpenAI's API"),
        ({"/v1/models": (200, b"<html>")}, "this is no server with OpenAI's API"),
        ({"/v1/models": (200, b"[]")}, "this is no server with OpenAI's API"),
        ({"/v1/models": (401, b"")}, "the server wants a key"),
        ({"/v1/models": (503, b"")}, "the server is not ready"),
        ({"/v1/models": (200, MODELS)}, "the server does not have one model alone: 2\n  allowed: a, b"),
        ({"/v1/models": (200, b'{"data": []}')}, "the server does not have one model alone: 0\n  allowed: none"),
        ({"/v1/models": (200, ONE)}, "this is no server with OpenAI's API: "),
        ({"/v1/models": (200, ONE), "/v1/completions": (500, b"no")}, "the first request failed"),
        ({"/v1/models": (200, ONE), "/v1/completions": (200, b'{"choices": []}')}, "answers without text"),
        ({"/v1/models": (200, ONE), "/v1/completions": (200, ANSWER)}, "the server is no vLLM, or does not count"),
    ],
)
def test_an_endpoint_that_is_not_what_it_says(tokenizer, results, study, pages, said):
    with answering(pages) as url:
        error = call(url, tokenizer, *SHORT).exception
    assert said in str(error), error
    assert not results.exists() and not study.events("load", "worker")


@pytest.mark.parametrize(
    ("words", "about", "said"),
    [
        ({"engine": "sglang"}, {}, "its counters are those of vLLM"),
        ({"engine": "turbo"}, {}, "unknown engine: turbo"),
        ({"section": "7"}, {}, "made for servers that it starts itself: 7"),
        ({"section": "13"}, {}, "no notebook for section"),
        ({"more": ("--model", "other")}, {}, "the server does not have this model: other\n  allowed: fake"),
        ({"more": ("--name", "../up")}, {}, "results cannot be called so"),
        ({"more": ("-p", "cheese=1")}, {}, "unknown parameter"),
        ({}, {"context": 16}, "the server's context is too short for the loads of section 3: 16 tokens"),
    ],
)
def test_what_is_refused_before_anything_starts(tokenizer, results, study, words, about, said):
    more = words.pop("more", ())
    with fake_study.foreign("fake", **about) as port:
        error = call(port, tokenizer, *SHORT, *more, **words).exception
    assert said in str(error), error
    assert "\n  allowed: " in str(error) and not results.exists() and not study.events("load", "worker")


@pytest.mark.parametrize("url", ["ftp://host", "host:8000", "http://", "http://host:port", "http://host:1?a=b"])
def test_what_is_no_address(tokenizer, results, url):
    assert "not the address of a server" in str(call(url, tokenizer).exception)


def test_a_server_that_does_not_answer(tokenizer, results):
    error = call(preflight.free_port(), tokenizer, *SHORT).exception
    assert "no server answers" in str(error) and "Connection refused" in str(error)
    assert not results.exists()


def test_a_model_whose_tokenizer_is_not_known(tokenizer, results):
    with fake_study.foreign("fake") as port:
        error = call(port, tokenizer, *SHORT, "--tokenizer", "nowhere").exception
    assert "no tokenizer to draw prompts with" in str(error) and not results.exists()


def test_a_server_that_is_lost_ends_it_and_what_was_measured_stays(tokenizer, results):
    with fake_study.foreign("fake", fault="dead-after") as port:
        error = call(port, tokenizer, *SHORT).exception
    assert isinstance(error, ServerError) and "does not answer after the load" in str(error)
    (cell,) = cells(results)
    assert cell["certificate"]["verdict"] == "fail" and "alive afterwards" in outcomes(cell, certificates.FAIL)
    (record,) = results.glob("*/*/*/run.json")
    assert files.read(record)["ended"]
