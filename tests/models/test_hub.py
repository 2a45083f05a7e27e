"""The hub as the engine's own huggingface_hub asks it: what it gives, and why it does not, told apart.

The script runs with this environment's huggingface_hub against a hub of this test's own.
"""

import errno
import hashlib
import http.server
import importlib.util
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from serving_study.environments import Environment, scripts
from serving_study.models import hub

HERE = Environment("vllm", Path(sys.executable), "3.12", {})
COMMIT = "a" * 40
FILES = {"config.json": b'{"vocab_size": 100}', "model.safetensors": b"weights", "pytorch_model.bin": b"not wanted"}


@pytest.fixture
def script():
    """The script as a module, for its own functions."""
    found = importlib.util.module_from_spec(importlib.util.spec_from_file_location("fetch", hub.SCRIPT))
    found.__spec__.loader.exec_module(found)
    return found


@pytest.fixture(autouse=True)
def nobody(tmp_path, monkeypatch):
    """No token, no proxy, an empty cache, and a hub that has to be named."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(hub, "ANSWER_S", 5.0)


@pytest.fixture
def own_hub(monkeypatch):
    """A hub with one model, `owner/model`; `status` is what it answers instead, `delay_s` how long it takes."""

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.reply(False)

        def do_GET(self):
            self.reply(True)

        def reply(self, with_body):
            time.sleep(self.server.delay_s)
            path, headers, status = self.path.split("?")[0], {}, self.server.status
            name = path.rsplit("/", 1)[-1]
            if status != 200:
                body = b"{}"
                headers = {"X-Error-Code": self.server.code} if self.server.code else {}
            elif "/resolve/" in path:
                body = FILES[name]
                headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
                if name in self.server.broken:
                    status, body = 500, b""
            elif "/tree/" in path:
                body = json.dumps(
                    [{"type": "file", "path": file, "size": len(FILES[file]), "oid": "1" * 40} for file in FILES]
                ).encode()
            else:
                siblings = [{"rfilename": file} for file in FILES]
                body = json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": siblings}).encode()
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.status, server.code, server.delay_s, server.broken, server.daemon_threads = 200, "", 0, (), True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()


def fetch(**more):
    return hub.fetch(HERE, "owner/model", patterns=["*.json", "*.safetensors"], **more)


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def test_a_snapshot_is_fetched_and_found_again_where_the_hub_is_gone(own_hub, monkeypatch):
    said = []
    found = fetch(say=said.append)
    assert found.reason is None and found.path.name == COMMIT
    assert sorted(file.name for file in found.path.iterdir()) == ["config.json", "model.safetensors"]
    assert said == ["owner/model: asking the hub (an answer within 5 s, all of it within 60 min)"]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert fetch() == found
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch() == found


def test_one_file_of_a_data_set(own_hub):
    found = hub.fetch(HERE, "owner/model", kind="dataset", file="config.json", revision=COMMIT)
    assert found.path.read_bytes() == FILES["config.json"]


def test_out_of_reach_are_no_connection_no_name_no_answer_and_offline_as_asked(own_hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert fetch() == hub.Fetched(None, "connection refused", out_of_reach=True)
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-hub.invalid")
    assert fetch() == hub.Fetched(None, "name look-up failed", out_of_reach=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch() == hub.Fetched(None, "offline, as HF_HUB_OFFLINE asks for", out_of_reach=True)


def test_no_answer_in_time_is_out_of_reach(own_hub, monkeypatch):
    monkeypatch.setattr(hub, "ANSWER_S", 0.3)
    own_hub.delay_s = 30
    assert fetch() == hub.Fetched(None, "no answer within 0.3 s", out_of_reach=True)


@pytest.mark.parametrize(
    "status, code, refused",
    [
        (401, "", True),
        (403, "GatedRepo", True),
        (404, "RepoNotFound", True),
        (403, "", True),
        (407, "", False),
        (500, "", False),
        (503, "", False),
    ],
)
def test_an_answer_that_gives_nothing_is_not_out_of_reach(own_hub, status, code, refused):
    own_hub.status, own_hub.code = status, code
    found = fetch()
    assert (found.path, found.out_of_reach, found.refused) == (None, False, refused) and str(status) in found.reason


def test_a_failure_after_the_first_answer_is_not_out_of_reach(own_hub):
    own_hub.broken = ("model.safetensors",)
    found = fetch()
    assert found.path is None and not found.out_of_reach and not found.refused and found.reason


def test_a_proxy_that_does_not_answer_is_the_reason(own_hub, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://user:secret@localhost:{free_port()}")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    found = fetch()
    assert not found.out_of_reach and "the proxy localhost of this environment does not answer" in found.reason
    assert "secret" not in found.reason


def test_a_missing_package_is_the_reason(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    found = hub.fetch(Environment("vllm", python, "3.12", {}), "owner/model")
    assert not found.out_of_reach and "No module named 'huggingface_hub'" in found.reason
    found = hub.fetch(Environment("vllm", tmp_path / "none", "3.12", {}), "owner/model")
    assert not found.out_of_reach and found.reason.endswith("No such file or directory")


def test_a_fetch_that_takes_too_long_ends_and_is_not_out_of_reach(monkeypatch):
    def never(*command, deadline_s, **_):
        raise TimeoutError(f"no answer within {deadline_s:g} s; killed")

    monkeypatch.setattr(scripts, "run", never)
    assert fetch(deadline_s=120) == hub.Fetched(None, "not whole within 2 min; the same command again resumes")


def test_the_script_ends_when_its_input_does(own_hub):
    own_hub.delay_s = 30
    wanted = json.dumps({"repository": "owner/model", "kind": "model", "answer_s": 30})
    with subprocess.Popen([sys.executable, hub.SCRIPT, wanted], stdin=subprocess.PIPE) as process:
        process.stdin.close()
        assert process.wait(20) == 4


def test_a_process_that_dies_is_quoted(monkeypatch):
    died = scripts.Ended((), -9, (), ("warning", "Killed"))
    monkeypatch.setattr(scripts, "run", lambda *_, **__: died)
    assert fetch().reason == f"{sys.executable} ended with exit code -9: Killed"


def test_a_name_that_is_never_resolved_has_a_deadline(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60) and [])
    with pytest.raises(TimeoutError, match="no answer within 0.2 s"):
        hub.read("http://hub.invalid/config.json", {}, 0.2)
    released.set()


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class ProxyError(Exception):
    """As httpx has it."""


class ConnectTimeout(Exception):
    """As httpx has it."""


@pytest.mark.parametrize(
    "error, why",
    [
        (caused(RuntimeError("x"), socket.gaierror(-3, "Temporary failure in name resolution")), "name look-up failed"),
        (caused(RuntimeError("x"), ConnectionRefusedError(errno.ECONNREFUSED, "refused")), "connection refused"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "network unreachable"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "no route to the host"),
        (ConnectTimeout("x"), "timed out"),
        (TimeoutError(), "timed out"),
        (caused(ProxyError("407"), ConnectionRefusedError(errno.ECONNREFUSED, "refused")), None),
        (caused(RuntimeError("x"), ssl.SSLCertVerificationError(1, "certificate verify failed")), None),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None),
        (ConnectionResetError(errno.ECONNRESET, "reset"), None),
        (ValueError("x"), None),
    ],
)
def test_what_counts_as_no_connection(script, error, why):
    assert script.unreached(error) == why


def test_a_full_disk_is_named(script):
    full = OSError(errno.ENOSPC, "No space left on device")
    assert script.reason(caused(RuntimeError("download failed"), full)) == (
        "OSError: [Errno 28] No space left on device"
    )
    assert script.reason(ValueError("two\n lines")) == "ValueError: two lines"
