"""Which source made a result: the commit where git tells it, and a digest of what ran."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from serving_study import paths
from serving_study.results import sources


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A small one: two modules, one of them in a folder, and two notebooks."""
    package = tmp_path / "src" / "serving_study"
    (package / "engines").mkdir(parents=True)
    (package / "engines" / "vllm.py").write_text("B = 2\n")
    (package / "arms.py").write_text("A = 1\n")
    (package / "notes.txt").write_text("no source\n")
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    (notebooks / "03-speculative-decoding.ipynb").write_text("{}\n")
    (notebooks / "05-parallelism.ipynb").write_text("[]\n")
    monkeypatch.setattr(sources, "PACKAGE", package)
    monkeypatch.setattr(paths, "NOTEBOOKS", notebooks)
    return tmp_path


def test_the_digest_is_of_the_modules_and_the_sections_notebook(checkout):
    assert list(sorted(sources.files(3))) == [
        "notebooks/03-speculative-decoding.ipynb",
        "src/serving_study/arms.py",
        "src/serving_study/engines/vllm.py",
    ]
    expected = (
        b"notebooks/03-speculative-decoding.ipynb\x003\x00{}\n"
        b"src/serving_study/arms.py\x006\x00A = 1\n"
        b"src/serving_study/engines/vllm.py\x006\x00B = 2\n"
    )
    assert sources.digest(3) == hashlib.sha256(expected).hexdigest()
    assert sources.digest("3-draft-graphs") == sources.digest(3) != sources.digest(5)


def test_the_digest_is_of_contents_and_not_of_times_or_line_ends(checkout):
    before = sources.digest(3)
    module = checkout / "src" / "serving_study" / "arms.py"
    module.write_bytes(b"A = 1\r\n")
    assert sources.digest(3) == before
    (checkout / "notebooks" / "05-parallelism.ipynb").write_text("changed\n")
    (checkout / "src" / "serving_study" / "notes.txt").write_text("changed\n")
    assert sources.digest(3) == before
    for change in ("A = 2\n", "A = 1\n\n"):
        module.write_text(change)
        assert sources.digest(3) != before
    module.write_text("A = 1\n")
    assert sources.digest(3) == before
    module.rename(module.with_name("arm.py"))
    assert sources.digest(3) != before


def test_a_section_without_a_notebook_has_the_modules_alone(checkout):
    assert set(sources.files("prose")) == set(sources.files(3)) - {"notebooks/03-speculative-decoding.ipynb"}
    (checkout / "notebooks" / "03-speculative-decoding.ipynb").unlink()
    assert sources.files("prose") == sources.files(3)


def test_the_book_s_own_sources_are_found():
    assert {"src/serving_study/results/sources.py", "src/serving_study/engine_side/bench_worker.py"} <= set(
        sources.files(7)
    )
    assert "notebooks/07-kv-cache-hybrid.ipynb" in sources.files("7-hybrid")


def test_without_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("git") is None and sources.git_commit() is None


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired("git", 20), PermissionError(13, "denied")])
def test_a_git_that_does_not_answer_is_no_commit(monkeypatch, error):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(error))
    assert sources.git_commit() is None


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_and_its_plus(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert sources.git_commit() is None  # no checkout
    (tmp_path / "a").write_text("1")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "a"], [*identity, "commit", "-q", "-m", "a"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    commit = sources.git_commit()
    assert len(commit) == 12
    (tmp_path / "a").write_text("2")
    assert sources.git_commit() == f"{commit}+"
