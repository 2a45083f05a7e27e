"""Answers token by token in the two forms of OpenAI's API, and an engine's tokenizer over HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from serving_study.engines.base import TokenizerApi
from serving_study.servers import answers

OF_COMPLETIONS = {
    "logprobs": {
        "tokens": [" Paris", "."],
        "token_logprobs": [-0.25, -1.0],
        "top_logprobs": [{" Paris": -0.25, " Lyon": -2.0}, None],
    }
}
OF_CHATS = {
    "logprobs": {
        "content": [
            {
                "id": 1,
                "token": " Paris",
                "logprob": -0.25,
                "top_logprobs": [{"token": " Paris", "logprob": -0.25}, {"token": " Lyon", "logprob": -2.0}],
            },
            {"id": 2, "token": ".", "logprob": -1.0, "top_logprobs": []},
        ]
    }
}


@pytest.mark.parametrize("choice", [OF_COMPLETIONS, OF_CHATS], ids=["completions", "chats"])
def test_both_forms_are_the_same_steps(choice):
    first, last = answers.steps_of(choice)
    assert first == {"token": " Paris", "logprob": -0.25, "candidates": {" Paris": -0.25, " Lyon": -2.0}}
    assert last == {"token": ".", "logprob": -1.0, "candidates": {}}


def test_a_server_that_tells_no_probabilities_has_no_steps():
    assert answers.steps_of({"text": "a"}) == answers.steps_of({"logprobs": None}) == []
    assert answers.steps_of({"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": None}}) == [
        {"token": "a", "logprob": -1.0, "candidates": {}}
    ]


class Tokenizer(BaseHTTPRequestHandler):
    """Letters as numbers; `lossy` loses capitals."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        if self.path == "/encode":
            answer = {"numbers": [ord(letter) for letter in body["content"]]}
        else:
            text = "".join(map(chr, body["numbers"]))
            answer = {"said": text.lower() if self.server.lossy else text}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def served():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tokenizer)
    server.asked, server.lossy = [], False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("lossy", [False, True])
def test_a_text_goes_through_the_tokenizer_and_back(served, lossy):
    served.lossy = lossy
    api = TokenizerApi("/encode", "/decode", text="content", ids="numbers", decoded="said", extra={"special": False})
    fleet = SimpleNamespace(
        url=f"http://127.0.0.1:{served.server_port}", arm=SimpleNamespace(model=SimpleNamespace(name="m"))
    )
    assert answers.round_trips(fleet, api, ["Ab"]) == [{"ids": [65, 98], "whole": not lossy}]
    assert served.asked[0] == ("/encode", {"model": "m", "special": False, "content": "Ab"})
