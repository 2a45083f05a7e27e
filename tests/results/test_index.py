"""The index gives what the files say: whatever happened to them, and to it, since it was made."""

import json
import os

import pytest

from serving_study import errors, files
from serving_study.results import index
from serving_study.results.store import Run, Store


def cell(repeat=0, key="k", **columns):
    return {
        "key": key,
        "arm": "baseline",
        "load": "concurrency=2",
        "concurrency": 2,
        "repeat": repeat,
        "at": "2030-01-01T00:00:00Z",
        "asked": {"temperature": 0.0},
        "server": {"alive": True},
        "steady": None,
        "result": {"completed": 8, "median_tpot_ms": 10.0},
        "certificate": {"verdict": "pass", "checks": []},
        "labels": {},
    } | columns


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The names of the cell files that are read."""
    names, read = [], files.read

    def noted(path):
        if path.name.startswith("repeat="):
            names.append(path.name)
        return read(path)

    monkeypatch.setattr(files, "read", noted)
    return names


@pytest.fixture
def known(results, cache, monkeypatch, reads) -> Store:
    """Three cells in a run, with an index of them."""
    monkeypatch.setattr(index, "FEWEST", 0)
    monkeypatch.setattr(index, "SETTLED_S", -60.0)
    known = Store("cpu", 3)
    run = Run(known.folder / "20300101T000000Z")
    files.write(run.folder / "run.json", {"schema": 1})
    for repeat in range(3):
        run.write_cell(cell(repeat, f"k{repeat}"), [])
    assert set(known.by_key()) == {"k0", "k1", "k2"} and len(reads) == 3
    reads.clear()
    return known


def file_of(known, repeat):
    return Run(known.folder / "20300101T000000Z").cell_file("baseline", "concurrency=2", repeat)


def test_what_did_not_change_is_not_read_again(known, reads):
    assert set(known.by_key()) == {"k0", "k1", "k2"} and len(known.newest()) == len(known.cells()) == 3
    assert known.left_out() == "" and known.cells_elsewhere() == 0 and reads == []
    assert known.newest()["file"].tolist() == known.cell_files()


def test_a_row_from_the_index_is_the_row_of_the_file(known):
    kept = known.cells()
    index.file_of(known.folder).unlink()
    assert known.cells().equals(kept)


def test_a_cell_more_alone_is_read(known, reads):
    Run(known.folder / "20300101T000000Z").write_cell(cell(3, "k3"), [])
    assert set(known.by_key()) == {"k0", "k1", "k2", "k3"} and reads == ["repeat=3.json"]
    assert set(known.by_key()) == {"k0", "k1", "k2", "k3"} and reads == ["repeat=3.json"]


def test_a_cell_of_an_older_run_keeps_its_place(known, reads):
    earlier = Run(known.folder / "20290101T000000Z")
    files.write(earlier.folder / "run.json", {"schema": 1})
    earlier.write_cell(cell(0, "k0", at="2029-01-01T00:00:00Z"), [])
    assert known.cells()["key"].tolist() == ["k0", "k0", "k1", "k2"] and reads == ["repeat=0.json"]
    assert known.by_key()["k0"] == file_of(known, 0)


def test_a_deleted_cell_is_gone(known, reads):
    file_of(known, 1).unlink()
    assert set(known.by_key()) == {"k0", "k2"} and reads == []
    assert set(json.loads(index.file_of(known.folder).read_text())["columns"]["key"]) == {"k0", "k2"}


def test_a_run_without_its_record_is_gone(known):
    (known.folder / "20300101T000000Z" / "run.json").unlink()
    assert known.by_key() == {}


def test_a_cell_written_anew_is_read(known, reads):
    files.write(file_of(known, 1), cell(1, "new"))
    assert set(known.by_key()) == {"k0", "new", "k2"} and reads == ["repeat=1.json"]


@pytest.mark.parametrize("keeps_time", [False, True])
def test_a_cell_edited_in_place_at_the_same_size_is_read(known, keeps_time):
    before = file_of(known, 1).stat()
    file_of(known, 1).write_text(file_of(known, 1).read_text().replace('"k1"', '"x1"'))
    if keeps_time:
        os.utime(file_of(known, 1), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_of(known, 1).stat().st_size == before.st_size
    assert set(known.by_key()) == {"k0", "x1", "k2"}


def test_a_copy_put_in_place_of_a_cell_is_read(known, tmp_path):
    before = file_of(known, 1).stat()
    other = tmp_path / "other.json"
    other.write_text(file_of(known, 1).read_text().replace('"k1"', '"x1"'))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, file_of(known, 1))
    assert set(known.by_key()) == {"k0", "x1", "k2"}


def test_a_cell_that_has_just_changed_is_not_kept(known, reads, monkeypatch):
    index.file_of(known.folder).unlink()
    monkeypatch.setattr(index, "SETTLED_S", 3600.0)
    assert len(known.by_key()) == len(known.by_key()) == 3 and len(reads) == 6


def test_a_damaged_cell_is_an_error_each_time(known):
    file_of(known, 1).write_text('{"key": "k')
    for _ in range(2):
        with pytest.raises(errors.StoreError, match=r"cannot be read: .*repeat=1\.json"):
            known.by_key()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "[]",
        lambda text: '{"columns": []}',
        lambda text: text.replace('"made_by":"', '"made_by":"x'),
        lambda text: text.replace('"key":["k0",', '"key":['),
        lambda text: text.replace('"alive":', '"lives":'),
    ],
)
def test_an_index_that_is_damaged_or_of_other_code_is_made_anew(known, reads, damage):
    place = index.file_of(known.folder)
    good = place.read_text()
    assert damage(good) != good
    place.write_text(damage(good))
    assert set(known.by_key()) == {"k0", "k1", "k2"} and len(reads) == 3
    assert place.read_text().strip() == good.strip()


def test_folders_have_indexes_of_their_own(known, results):
    other = Store("cpu", 4)
    assert other.by_key() == {} and len(known.by_key()) == 3
    assert index.file_of(other.folder) != index.file_of(known.folder)


def test_a_cache_that_cannot_be_written_keeps_none(known, reads, cache):
    index.file_of(known.folder).unlink()
    index.file_of(known.folder).parent.rmdir()
    (cache / "results-index").write_text("not a folder")
    assert len(known.by_key()) == len(known.by_key()) == 3 and len(reads) == 6


def test_nothing_is_written_among_the_results(known):
    kinds = {file.name.split("=")[0] for file in known.folder.rglob("*") if file.is_file()}
    assert kinds == {"run.json", "repeat"}


def test_few_cells_have_no_index(known, reads, monkeypatch):
    monkeypatch.setattr(index, "FEWEST", 4)
    index.file_of(known.folder).unlink()
    assert len(known.by_key()) == 3 and not index.file_of(known.folder).exists()


def test_a_cell_that_goes_while_it_is_read_is_left_out(known, monkeypatch):
    read = files.read
    index.file_of(known.folder).unlink()

    def late(path):
        if path.name == "repeat=1.json":
            path.unlink()
        return read(path)

    monkeypatch.setattr(files, "read", late)
    assert set(known.by_key()) == {"k0", "k2"}
