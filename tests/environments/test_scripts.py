"""The one caller of engine-side scripts: with real processes that print, fail, hang, go silent and leave children."""

import json
import os
import sys
import time

import psutil
import pytest

from serving_study.environments import scripts
from serving_study.errors import EngineEnvironmentError


@pytest.fixture
def run(tmp_path):
    def run(code, *arguments, deadline_s=30.0, **given):
        script = tmp_path / "script.py"
        script.write_text(code)
        return scripts.run(sys.executable, script, *arguments, deadline_s=deadline_s, **given)

    return run


def gone(file):
    """Whether the process whose number is in the file ends within seconds."""
    number, until = int(file.read_text()), time.monotonic() + 10
    while psutil.pid_exists(number) and psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_rows_come_as_they_are_printed_and_other_lines_are_kept(run):
    seen = []
    ended = run("import sys; print('{\"a\": 1}\\n[1]\\nhello\\n' + sys.argv[1])", '{"b": 2}', each=seen.append)
    assert seen == [{"a": 1}, {"b": 2}] and ended.check() is ended
    assert ended.lines == ('{"a": 1}\n', "[1]\n", "hello\n", '{"b": 2}\n')


def test_what_a_script_is_given(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    code = "import json, os; print(json.dumps(dict(os.environ)), os.getsid(0) == os.getpid())"
    for variables, offline in ((scripts.OFFLINE, "1"), (scripts.QUIET, None)):
        said, alone = run(code, variables=variables).lines[-1].rsplit(" ", 1)
        given = json.loads(said)
        assert (given.get("HF_HUB_OFFLINE"), given["NO_COLOR"], alone) == (offline, "1", "True\n")
        assert "FORCE_COLOR" not in given and given["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; print('a warning', file=sys.stderr); sys.exit('no torch')", "no torch"),
        ("import sys; sys.exit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
def test_a_script_that_fails_says_why(run, code, said):
    ended = run(code)
    with pytest.raises(EngineEnvironmentError, match=f"does not run script.py: {said}") as caught:
        ended.check()
    assert caught.value.next == " ".join(ended.command)
    with pytest.raises(EngineEnvironmentError, match=f"not measured: {said}"):
        ended.figures("not measured")


def test_figures_end_with_one_that_says_done(run):
    rows = '{"name": 1}\n{"done": true, "torch": "2"}'
    assert run(f"print({rows!r})").figures("not measured") == ([{"name": 1}], {"done": True, "torch": "2"})
    with pytest.raises(EngineEnvironmentError, match="not measured: exit code 0"):
        run("print('{\"name\": 1}')").figures("not measured")


def test_the_log_grows_and_only_this_runs_complaints_are_shown(run, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("an earlier run\n")
    ended = run("import sys; print('gone', file=sys.stderr); sys.exit(3)", log=log)
    assert ended.last_words == "exit code 3\n    | gone" and log.read_text() == "an earlier run\ngone\n"
    assert run("", log=log).last_words == "exit code 0"


HANGS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(os.getpid())), open(sys.argv[2], "w").write(str(child.pid))
"""


def test_a_script_that_hangs_is_killed_with_its_children_at_the_deadline(run, tmp_path):
    with pytest.raises(TimeoutError, match=r"^no answer within 1.5 s; killed$"):
        run(HANGS + "time.sleep(600)", tmp_path / "own", tmp_path / "child", deadline_s=1.5)
    assert gone(tmp_path / "own") and gone(tmp_path / "child")


def test_one_that_goes_on_printing_is_killed_at_the_deadline_too(run):
    with pytest.raises(TimeoutError, match=r"^no end within 1.5 s, after \d+ lines; killed$"):
        run("while True: print('{}', flush=True)", deadline_s=1.5)


def test_a_renewed_deadline_is_one_for_silence(run):
    slow = "import time\nfor _ in range(8): print('{}', flush=True); time.sleep(0.5)\n"
    assert len(run(slow, deadline_s=3.0, renewed=True).lines) == 8
    with pytest.raises(TimeoutError, match="after 8 lines"):
        run(slow + "time.sleep(600)", deadline_s=3.0, renewed=True)


def test_a_child_that_is_left_behind_with_the_output_open_is_not_waited_for(run, tmp_path):
    began = time.monotonic()
    ended = run(HANGS + "print('{}', flush=True); os._exit(0)", tmp_path / "own", tmp_path / "child", deadline_s=60)
    assert ended.lines == ("{}\n",) and ended.code == 0 and time.monotonic() - began < 30 and gone(tmp_path / "child")


def test_an_exception_in_the_callback_ends_the_script(run, tmp_path):
    def interrupt(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(HANGS + "print('{}', flush=True); time.sleep(600)", tmp_path / "own", tmp_path / "child", each=interrupt)
    assert gone(tmp_path / "own") and gone(tmp_path / "child")


def test_its_input_stays_open_until_it_ends(run):
    waits = "import select, sys; print(bool(select.select([sys.stdin], [], [], 0.3)[0]))"
    assert run(waits).lines == ("False\n",)


def test_an_interpreter_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        scripts.run(tmp_path / "python", "script.py", deadline_s=1.0)
