"""The section-3 notebook as its reader runs it: `serving-study run 3` with the real CPU engine, killed in the middle
and run again.
"""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from checkouts import command, ours, wait
from fake_study import TIMED

from serving_study import files, paths
from serving_study.hardware import hosts

TINY = (
    "{arms: [baseline, ngram-k3], concurrencies: [1, 2], prompts: [2, 2], output_tokens: 8, ngram_window: [1, 4], "
    "repeats: 1, lives: 1, minutes: 0}"
)


@pytest.mark.alone
@pytest.mark.timeout(1500)
def test_killed_and_run_again_measures_nothing_twice(checkout):
    words, environment = command(checkout, "3", TINY)
    folder = checkout / "data" / "results" / hosts.detect("cpu").name / "section-3"
    log = open(checkout / "first.log", "wb")
    with log, subprocess.Popen(words, env=environment, stdout=log, stderr=log) as first:
        stored = lambda: [file for file in folder.glob("*/cells/*/*/repeat=?.json")]  # noqa: E731
        kept = wait(
            lambda: stored() or first.poll() is not None and pytest.fail(Path(log.name).read_text()),
            600,
            "a first cell",
        )
        first.send_signal(signal.SIGKILL)
    wait(lambda: not ours(checkout), 90, f"the processes of a killed run end ({ours(checkout)})")
    before = {file: file.stat().st_mtime_ns for file in stored()}
    assert 1 <= len(before) < 4 and set(kept) <= set(before)
    chapter = Path("book/sections/03-speculative-decoding.ipynb")
    assert (checkout / chapter).read_bytes() == (
        paths.ROOT / chapter
    ).read_bytes()  # a killed run leaves what was published

    run = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "measured already" in run.stdout
    assert all(file.stat().st_mtime_ns == changed for file, changed in before.items())
    cells = [files.read(file) for file in stored()]
    assert len(cells) == len({cell["key"] for cell in cells}) <= len(before) + 4
    blocks = {(cell["arm"], cell["concurrency"]): set() for cell in cells}
    for cell in cells:
        blocks[cell["arm"], cell["concurrency"]].add((cell["run"], cell["repeat"]))
    assert all(blocks["baseline", at] & blocks["ngram-k3", at] for at in (1, 2))  # a block that both arms share
    for cell in cells:
        failed = {
            check["name"]: check["evidence"]
            for check in cell["certificate"]["checks"]
            if check["outcome"] != "pass" and check["name"] not in TIMED
        }
        if cell["arm"] == "ngram-k3":  # eight tokens may hold nothing to look up
            failed.pop("mechanism", None)
        assert not failed, (cell["arm"], failed)
        assert cell["result"]["total_output_tokens"] == 16 and cell["timing"]["overhead_s"] > 0
    chapter = json.loads((checkout / "book" / "sections" / "03-speculative-decoding.ipynb").read_text())
    text = json.dumps(chapter)
    assert str(checkout) not in text and '"output_type": "error"' not in text
    assert not ours(checkout)

    again = subprocess.run([*words, "--dry-run"], env=environment, capture_output=True, text=True)
    assert again.returncode == 0 and again.stdout.count("0 to measure") == 2, again.stdout + again.stderr


def test_a_wrong_parameter_starts_nothing(checkout):
    words, environment = command(checkout, "3", TINY)
    for wrong, said in (("-p", "unknown parameter"), ("--yaml", "wrong type")):
        extra = {"-p": ["-p", "repeat=2"], "--yaml": ["-p", "repeats=two"]}[wrong]
        run = subprocess.run([*words, *extra], env=environment, capture_output=True, text=True)
        assert run.returncode == 2 and said in run.stderr and "allowed:" in run.stderr, run.stderr
    assert not list((checkout / "data" / "results").glob("cpu-*"))
