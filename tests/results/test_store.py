"""Results appear whole or not at all, are found by key, and survive a full disk, a damaged file and a second run."""

import errno
import fcntl
import io
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from serving_study import files
from serving_study.engines import base, vllm
from serving_study.errors import ParameterError, StoreError
from serving_study.hardware.hosts import Host
from serving_study.measure import mechanisms
from serving_study.results import old_cells, store
from serving_study.results.store import Store
from serving_study.servers.arm import COLUMNS


def cell(arm="baseline", repeat=0, key="k", **about):
    return {
        "key": key,
        "host": "cpu",
        "section": 3,
        "run": "r",
        "arm": arm,
        "load": "concurrency=2",
        "concurrency": 2,
        "repeat": repeat,
        "at": "2030-01-01T00:00:00Z",
        "asked": {"temperature": 0.0},
        "server": {"alive": True},
        "steady": None,
        "result": {"completed": 8, "failed": 0, "output_throughput": 80.5, "median_tpot_ms": 10.0, "something_new": 1},
        "speculation": {},
        "certificate": {"verdict": "pass", "checks": []},
        "labels": {"host": "cpu", "weights": "real", "acceptance": None},
    } | about


def start(arm="baseline", key="a", outcome="ok", figures=None):
    labels = {"host": "cpu", "weights": "real", "acceptance": None}
    return {
        "key": key,
        "host": "cpu",
        "section": 3,
        "run": "r",
        "arm": arm,
        "outcome": outcome,
        "reason": None,
        "figures": figures or {},
        "labels": labels,
        "at": "2030-01-01T00:00:00Z",
    }


@pytest.fixture
def known(results):
    return Store("cpu", 3)


def run_of(known, name="20300101T000000Z", *cells, starts=()):
    run = store.Run(known.folder / name)
    files.write(run.folder / "run.json", {"schema": 1})
    for one in cells:
        run.write_cell(one, [{"start_s": 0.0}])
    for one in starts:
        files.write(run.start_folder(one["arm"]) / "start.json", one)
    return run


def test_places(known, results):
    assert known.folder == results / "cpu" / "section-3"
    run = store.Run(known.folder / "r")
    assert (
        run.cell_file("draft-k3", "concurrency=8", 1)
        == results / "cpu/section-3/r/cells/draft-k3/concurrency=8/repeat=1.json"
    )
    assert run.start_folder("draft-k3") == results / "cpu/section-3/r/arms/draft-k3"
    assert Store("cpu", 3, root=results / "elsewhere").folder == results / "elsewhere/cpu/section-3"


def test_a_file_is_written_beside_its_place_and_renamed(tmp_path, monkeypatch):
    seen = []
    real = os.replace

    def replace(source, target):
        seen.append(
            (Path(source).read_text(), os.path.exists(target), os.path.dirname(source) == os.path.dirname(target))
        )
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    files.write(tmp_path / "a" / "b.json", {"x": 1})
    assert seen == [('{\n "x": 1\n}\n', False, True)]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.json"] and files.read(
        tmp_path / "a" / "b.json"
    ) == {"x": 1}
    files.write(tmp_path / "c.csv", "a,b\n")
    assert (tmp_path / "c.csv").read_text() == "a,b\n"


@pytest.mark.parametrize(
    ("where", "number", "hint"),
    [
        ("replace", errno.ENOSPC, "df -h"),
        ("fsync", errno.ENOSPC, "df -h"),
        ("fsync", errno.EDQUOT, "quota"),
        ("replace", errno.EIO, None),
    ],
)
def test_a_disk_that_does_not_take_it_leaves_the_old_file(tmp_path, monkeypatch, where, number, hint):
    files.write(tmp_path / "x.json", {"old": 1})

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, where, fail)
        with pytest.raises(StoreError, match=os.strerror(number)) as caught:
            files.write(tmp_path / "x.json", {"new": 1})
    assert files.read(tmp_path / "x.json") == {"old": 1} and [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert caught.value.next == hint if hint is None else caught.value.next.startswith(hint)
    assert "intact" in caught.value.what


@pytest.mark.parametrize(("number", "hint"), [(errno.EACCES, "ls -ld"), (errno.EROFS, "findmnt -T")])
def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch, number, hint):
    real = open

    def refuse(path, mode="r", *rest, **named):
        if "w" in mode and str(path).endswith(".tmp"):
            raise OSError(number, os.strerror(number))
        return real(path, mode, *rest, **named)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(StoreError, match=os.strerror(number)) as caught:
        files.write(tmp_path / "x.json", {})
    assert caught.value.next.startswith(hint) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b'{"key": "a"', b"", b"\xff\xfe\x00"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(StoreError, match="a stored result cannot be read: .*x.json") as caught:
        files.read(tmp_path / "x.json")
    assert f"rm {tmp_path / 'x.json'}" in caught.value.next


def test_a_damaged_cell_is_not_taken_for_a_missing_one(known):
    run = run_of(known, "r", cell())
    run.cell_file("baseline", "concurrency=2", 0).write_text('{"key": "k", ')
    with pytest.raises(StoreError, match="repeat=0.json"):
        known.by_key()


def test_the_lock_is_for_one_run_at_a_time(known):
    with known.lock():
        assert (known.folder / ".lock").read_text() == str(os.getpid())
        with (
            pytest.raises(StoreError, match=rf"another run is writing here: .*section-3 \(pid {os.getpid()}\)"),
            known.lock(),
        ):
            pass
        with Store("cpu", 2).lock():
            pass
    with known.lock():
        pass


def test_a_lock_held_by_another_process_says_nothing_of_a_pid_that_it_does_not_know(known):
    known.folder.mkdir(parents=True)
    with open(known.folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match=r"\(pid unknown\)"), known.lock():
            pass


def test_a_lock_left_by_a_killed_run_is_no_lock(known):
    known.folder.mkdir(parents=True)
    (known.folder / ".lock").write_text("99999999")
    with known.lock():
        assert (known.folder / ".lock").read_text() == str(os.getpid())


def test_a_results_folder_that_cannot_be_made(known, monkeypatch):
    def refuse(self, **_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(StoreError, match="results cannot be written: .*Read-only file system"), known.lock():
        pass


def test_runs_have_names_of_their_own(known, monkeypatch):
    import datetime as real

    class Frozen(real.datetime):
        @classmethod
        def now(cls, zone=None):
            return cls(2030, 1, 2, 3, 4, 5, tzinfo=zone)

    monkeypatch.setattr(store.datetime, "datetime", Frozen)
    names = []
    for _ in range(3):
        run = known.new_run()
        names.append(run.name)
        files.write(run.folder / "run.json", {})
    assert names == ["20300102T030405Z", "20300102T030405Z-2", "20300102T030405Z-3"]
    assert [run.name for run in known.runs()] == names


def test_cells_are_found_by_key_the_newest_first(known):
    run_of(known, "20300101T000000Z", cell(key="a"), cell(repeat=1, key="b"))
    run_of(known, "20300102T000000Z", cell(key="a"))
    (known.folder / "20300103T000000Z" / "cells").mkdir(parents=True)  # a run that was killed before it began
    found = known.by_key()
    assert (
        set(found) == {"a", "b"}
        and found["a"].parts[-5] == "20300102T000000Z"
        and found["b"].parts[-5] == "20300101T000000Z"
    )
    assert len(known.cell_files()) == 3 and len(known.cells()) == 3


def test_a_cell_whose_records_alone_were_written_does_not_exist(known):
    run = run_of(known, "r")
    files.write(run.cell_file("baseline", "concurrency=2", 0).with_suffix(".requests.json"), "[]")
    assert known.cell_files() == [] and known.by_key() == {}


def test_records_come_first_and_lie_beside(known, monkeypatch):
    order = []
    real = files.write
    monkeypatch.setattr(files, "write", lambda path, content: order.append(path.name) or real(path, content))
    run = run_of(known, "r", cell())
    assert order[1:] == ["repeat=0.requests.json", "repeat=0.json"]
    assert store.requests_of(run.cell_file("baseline", "concurrency=2", 0)) == [{"start_s": 0.0}]
    assert files.read(run.cell_file("baseline", "concurrency=2", 0))["schema"] == store.SCHEMA


def test_a_start_that_fails_later_leaves_the_figures_of_the_good_one(known):
    good, refused = {"kv_cache_tokens": 12288}, {"kv_gib_needed": 2.0}
    run_of(known, "20300101T000000Z", starts=[start("a", "a", "ok", good), start("b", "b", "ok", good)])
    run_of(known, "20300102T000000Z", starts=[start("a", "a", "failed"), start("b", "b", "failed", refused)])
    found = known.starts_by_key()
    assert [(found[key]["outcome"], found[key]["figures"]) for key in "ab"] == [("failed", good), ("failed", refused)]


def test_starts_by_key_the_newest_wins(known):
    run_of(known, "20300101T000000Z", starts=[start(outcome="failed"), start("b", key="b")])
    run_of(known, "20300102T000000Z", starts=[start(outcome="ok")])
    assert {key: row["outcome"] for key, row in known.starts_by_key().items()} == {"a": "ok", "b": "ok"}


def test_tables_are_derived_at_any_time(known):
    speculation = {
        "acceptance_rate": 0.5,
        "acceptance_length": 2.5,
        "drafts": 10,
        "drafted_tokens": 30,
        "accepted_tokens": 15,
    }
    run = run_of(
        known,
        "r",
        cell(),
        cell("draft-k3", key="d", speculation=speculation, certificate={"verdict": "fail", "checks": []}),
        cell("uncertified", key="u", certificate=None),
        starts=[
            start(figures={"weights_gib": 0.25, "kv_cache_tokens": 12288, "healthy_s": 3.0}),
            start("big", key="b", outcome="failed"),
        ],
    )
    known.rebuild(run)
    header, rows = (run.folder / "cells.csv").read_text().splitlines()[0], pandas.read_csv(run.folder / "cells.csv")
    assert header.startswith(
        "host,section,run,arm,load,concurrency,repeat,certificate,"
        "technique,k,tp,pp,dp,ep,replicas,model,draft,distinction,repeat_of,engine,engine_version,completed,failed,"
    )
    assert header.split(",") == list(store.CELL_COLUMNS)
    by_arm = rows.set_index("arm")
    assert by_arm["certificate"].to_dict() == {"baseline": "pass", "draft-k3": "fail", "uncertified": "unknown"}
    assert by_arm.loc["draft-k3", "acceptance_rate"] == 0.5 and by_arm.loc["baseline", "output_throughput"] == 80.5
    assert pandas.isna(by_arm.loc["baseline", "acceptance_rate"]) and pandas.isna(by_arm.loc["baseline", "p99_ttft_ms"])
    starts = (run.folder / "starts.csv").read_text()
    assert (
        starts.splitlines()[0]
        == "host,section,run,arm,technique,k,tp,pp,dp,ep,replicas,model,draft,distinction,repeat_of,engine,"
        "engine_version,outcome,reason,weights_gib,kv_cache_tokens,max_concurrency,startup_s,weights,at,key"
    )
    table = pandas.read_csv(io.StringIO(starts)).set_index("arm")
    assert (
        table.loc["baseline", "kv_cache_tokens"] == 12288
        and pandas.isna(table.loc["big", "weights_gib"])
        and table.loc["big", "outcome"] == "failed"
    )
    before = (run.folder / "cells.csv").read_bytes()
    (run.folder / "cells.csv").unlink()
    known.rebuild(run)
    assert (run.folder / "cells.csv").read_bytes() == before


def test_an_empty_store_is_an_empty_table(known):
    assert list(known.cells().columns) == list(store.CELL_COLUMNS) and len(known.cells()) == 0 and known.runs() == []
    assert set(known.cells().dtypes) == set(known.newest().dtypes) == {pandas.Series(dtype=object).dtype}


def test_keys_are_of_what_decides_a_result_whatever_its_order():
    assert files.key({"a": 1, "b": 2}) == files.key({"b": 2, "a": 1})
    assert len({files.key({"a": 1}), files.key({"a": 2}), files.key({"a": 1}, {}), files.key({}, {"a": 1})}) == 4
    assert len(files.key({})) == 24


def test_a_cell_whose_server_was_dead_afterwards_is_measured_again(results):
    known = store.Store("cpu", 3)
    run = known.new_run()
    files.write(run.folder / "run.json", {})
    run.write_cell(cell(key="good"), [])
    run.write_cell(cell(arm="other", key="dead", server={"alive": False}), [])
    assert set(known.by_key()) == {"good"} and len(known.cell_files()) == 2


def test_another_folders_results_are_not_taken_for_ours(results):
    assert store.results_folder_id() is None
    store.name_results_folder()
    named = store.results_folder_id()
    store.name_results_folder()
    assert store.results_folder_id() == named and len(named) == 32
    (results / store.FOLDER_ID).unlink()
    store.name_results_folder()
    assert store.results_folder_id() != named


def machine(**about):
    return replace(Host("h200x1", "Xeon", 16, 125.9, 125.0, (), "580", "kvm", "6.1"), **about)


def measured_on(known, name, host, *cells, at="2030-01-01T00:00:00Z", starts=()):
    run = run_of(known, name, *(one | {"run": name, "at": at} for one in cells), starts=starts)
    files.write(run.folder / "run.json", {"host": host.as_dict()})


def test_the_newest_cells_are_of_one_machine_and_what_is_left_out_is_said(results):
    known = Store("h200x1", 3)
    measured_on(known, "20300101T000000Z", machine(), cell("a"), cell("b"), starts=[start("a"), start("b", key="b")])
    assert known.left_out() == "" and known.cells_elsewhere() == 0 and set(known.newest()["arm"]) == {"a", "b"}
    later = {"at": "2030-02-01T00:00:00Z", "starts": [start("a", key="c", figures={"startup_s": 9})]}
    measured_on(known, "20300201T000000Z", machine(kernel="6.2"), cell("a", key="c"), **later)
    assert known.newest()[["arm", "key"]].values.tolist() == [["a", "c"]]
    assert {arm: one["key"] for arm, one in known.newest_starts().items()} == {"a": "c"}
    assert known.cells_elsewhere() == 2 and known.left_out() == (
        "2 cells of h200x1 were made by another machine than the newest "
        "(Xeon, 16 cores, 126 GiB, kvm, kernel 6.1, driver 580) and take no part"
    )
    assert len(known.cells()) == 3  # all of them, for whoever asks for a run by name


def test_a_run_that_did_not_record_its_virtualisation_may_be_of_the_same_machine(results):
    known = Store("h200x1", 3)
    measured_on(known, "20300101T000000Z", machine(virtualisation=""), cell("a"))
    measured_on(known, "20300201T000000Z", machine(), cell("b", key="c"), at="2030-02-01T00:00:00Z")
    assert set(known.newest()["arm"]) == {"a", "b"} and known.left_out() == ""


def test_cpu_is_this_machine_or_the_only_other(results, monkeypatch):
    own = replace(machine(), profile="cpu", gpus=())
    monkeypatch.setattr(store.hosts, "detect", lambda profile="auto": own)
    monkeypatch.setattr(store.paths, "RESULTS_PUBLISHED", results)
    one, two = (replace(own, cpus=cpus) for cpus in (2, 4))
    assert store.host_named("h200x1", 3) == "h200x1" and store.host_named("cpu", 3) == own.name
    measured_on(Store(one.name, 3), "r", one, cell("a"))
    assert store.host_named("cpu", 3) == one.name and store.host_named("cpu", 4) == own.name
    measured_on(Store(two.name, 3), "r", two, cell("a"))
    with pytest.raises(ParameterError) as caught:
        store.host_named("cpu", 3)
    assert f"{one.name} ({one.words})" in caught.value.allowed and two.words in caught.value.allowed
    measured_on(Store(own.name, 3), "r", own, cell("a"))
    assert store.host_named("cpu", 3) == own.name and store.host_named(two.name, 3) == two.name
    assert store.measured_hosts(3) == sorted([one.name, two.name, own.name]) and store.measured_hosts(4) == []
    assert store.machine_of(one.name) == "Xeon, 2 cores, 126 GiB, kvm, kernel 6.1, driver 580"
    assert store.machine_of("moon") == ""


def test_every_published_run_lies_with_the_machine_that_made_it():
    runs = sorted(store.paths.RESULTS_PUBLISHED.glob("*/section-*/*/run.json"))
    for file in runs:
        host = store.hosts.of_record(files.read(file))
        assert host.name == file.parents[2].name, file
        rows = pandas.read_csv(file.parent / "cells.csv")["host"], pandas.read_csv(file.parent / "starts.csv")["host"]
        assert {name for column in rows for name in column} <= {host.name}, file
    folders = {file.parents[2].name for file in runs}
    assert {"cpu-46af", "cpu-c2f5", "h200x1"} <= folders and "cpu" not in folders
    readme = (store.paths.RESULTS_PUBLISHED / "README.md").read_text()
    for name in filter(store.hosts.is_cpu, folders):
        assert f"- `{name}`: {store.machine_of(name, store.paths.RESULTS_PUBLISHED)}\n" in readme, name


def test_a_figure_that_answers_of_one_token_do_not_have_is_missing_and_not_zero():
    zeros = dict.fromkeys(("mean_tpot_ms", "p99_tpot_ms", "median_itl_ms", "std_itl_ms"), 0.0)
    result = {"completed": 4, "total_output_tokens": 4, "median_ttft_ms": 7.0, "median_e2el_ms": 7.0} | zeros
    row = store.cell_row(cell(result=result))
    assert row["mean_tpot_ms"] is row["p99_tpot_ms"] is row["median_itl_ms"] is None
    assert row["median_ttft_ms"] == 7.0 and row["median_e2el_ms"] == 7.0
    assert store.figures_of(result | {"total_output_tokens": 5})["mean_tpot_ms"] == 0.0
    assert store.figures_of(result | {"total_output_tokens": 0, "median_ttft_ms": 0.0})["median_ttft_ms"] is None
    assert store.figures_of(result)["std_itl_ms"] is None and store.figures_of({"mean_tpot_ms": 3.0}) == {
        "mean_tpot_ms": 3.0
    }


def test_no_published_cell_has_a_latency_of_zero():
    for file in sorted(store.paths.RESULTS_PUBLISHED.glob("*/section-*/*/cells.csv")):
        frame = pandas.read_csv(file)
        for name in (name for name in frame if name.endswith("_ms")):
            assert not (frame[name] == 0).any(), (file, name)


def test_judging_the_published_cells_again_changes_nothing(tmp_path):
    shutil.copytree(store.paths.RESULTS_PUBLISHED, tmp_path / "results")
    texts = {file: file.read_bytes() for file in (tmp_path / "results").rglob("*.*") if file.is_file()}
    for folder in sorted((tmp_path / "results").glob("*/section-*")):
        known = Store(folder.parent.name, folder.name.removeprefix("section-"), tmp_path / "results")
        assert known.certify(mechanisms.certify) == 0, folder
    again = {file: file.read_bytes() for file in (tmp_path / "results").rglob("*.*") if file.is_file()}
    assert [file for file in texts.keys() | again.keys() if texts.get(file) != again.get(file)] == []


def measured_with(known, name, at, *cells, **parameters):
    run = run_of(known, name, *(one | {"run": name, "at": at} for one in cells), starts=[start("a", key=name)])
    files.write(run.folder / "run.json", {"parameters": parameters})


def test_the_newest_cells_are_of_one_model_and_temperature(results):
    known = Store("h200x1", 3)
    warm = cell("a", key="warm", asked={**cell()["asked"], "temperature": 0.7})
    measured_with(known, "20300101T000000Z", "2030-01-01T00:00:00Z", cell("a"), cell("b"), model="an/older")
    measured_with(known, "20300102T000000Z", "2030-01-02T00:00:00Z", warm, model="a/newer")
    measured_with(known, "20300103T000000Z", "2030-01-03T00:00:00Z", cell("a", key="c"), model="a/newer")

    def keys(**wanted):
        return dict(known.newest(**wanted)[["arm", "key"]].values.tolist())

    assert keys() == {"a": "c"} and keys(temperature=0.7) == {"a": "warm"}
    assert keys(model="a/newer") == {"a": "c"} and keys(model="none/such") == {}
    assert set(keys(model="an/older")) == {"a", "b"} and keys(model="an/older", temperature=0.7) == {}
    assert known.cells_of_another_model() == 2
    assert known.newest_starts()["a"]["key"] == "20300103T000000Z"


def test_a_section_whose_arms_have_models_of_their_own_has_all_of_them(results):
    known = Store("h200x1", 5)
    measured_with(known, "20300101T000000Z", "2030-01-01T00:00:00Z", cell("7b-tp1"))
    measured_with(known, "20300102T000000Z", "2030-01-02T00:00:00Z", cell("14b-tp1", key="c"))
    assert set(known.newest()["arm"]) == {"7b-tp1", "14b-tp1"} and known.cells_of_another_model() == 0


def test_a_cell_stored_under_vllms_own_names_is_read_under_ours(tmp_path):
    """A published one: the section, the arm and the load as they lie in data/results."""
    [file] = store.paths.RESULTS_PUBLISHED.glob(
        "cpu-0028/section-7/20261202T155451Z/cells/device-only/working-set=1,prefix=512,concurrency=1/repeat=0.json"
    )
    stored, requests = files.read(file), files.read(file.with_suffix(".requests.json"))
    assert set(stored["counters"]) == {"finished"} | set(old_cells.NAMES) - {"vllm:time_to_first_token_seconds_sum"}
    cell, records = store.read_cell(file), store.requests_of(file)
    assert set(cell["counters"]) == {"finished", *base.NAMES, base.TTFT, base.E2E, base.QUEUE}
    assert cell["counters"][base.PREFIX_HITS] == stored["counters"]["vllm:prefix_cache_hits_total"] > 0
    assert cell["counters"][base.TTFT] == stored["counters"]["vllm:time_to_first_token_seconds"]
    assert cell["counters"]["finished"] == stored["counters"]["finished"]
    assert {name: value for name, value in cell.items() if name in stored and name != "counters"} == {
        name: value for name, value in stored.items() if name != "counters"
    }
    assert set(cell) - set(stored) == {"tp", "pp", "dp", "ep", "replicas", "draft", "distinction", "steady"}
    assert [set(record["counters"]) for record in records] == len(requests) * [set(vllm.COUNTERS.watched)]
    assert sum(record["counters"][base.PREFIX_HITS] for record in records) == cell["counters"][base.PREFIX_HITS]
    # What is under our names already passes through.
    files.write(tmp_path / "repeat=0.json", cell)
    assert store.read_cell(tmp_path / "repeat=0.json") == cell


def test_arms_of_published_cells_say_what_they_are_as_arms_do_today():
    """Each beside what its plan's arms say of themselves: from the command where the cell does not say it."""
    read = {
        (cell["arm"], file.parents[4].name): {name: cell[name] for name in COLUMNS}
        for host in ("cpu-0028", "h200x1")
        for file in store.paths.RESULTS_PUBLISHED.glob(f"{host}/section-*/*/cells/*/*/repeat=0.json")
        for cell in [store.read_cell(file)]
    }
    plain = {"technique": "none", "k": 0, "tp": 1, "pp": 1, "dp": 1, "ep": False, "replicas": 1}
    plain |= {"draft": None, "distinction": None, "repeat_of": None}
    cpu, large = {"model": "smollm2-135m-instruct"}, {"model": "Qwen/Qwen2.5-7B-Instruct"}
    split = plain | {"model": "smollm2-135m-instruct-12-heads", "technique": "parallel"}
    cut = {"technique": "draft", "k": 3, "draft": "smollm2-135m-instruct-first-4-layers", "distinction": "truncated"}
    mapped = {
        "technique": "draft",
        "k": 3,
        "draft": "Qwen/Qwen2.5-0.5B-Instruct-152064",
        "distinction": "same-vocabulary",
    }
    assert read["baseline-again", "section-4"] == plain | cpu | {"repeat_of": "baseline"}
    assert read["draft-k3-truncated", "section-4"] == plain | cpu | cut
    assert read["draft-k3-same-vocabulary", "section-3"] == plain | large | mapped
    assert read["135m-12-heads-replicas2", "section-5"] == split | {"replicas": 2}
    assert read["135m-12-heads-pp2", "section-5"] == split | {"pp": 2}
    assert read["135m-12-heads-tp1-again", "section-5"] == split | {"repeat_of": "135m-12-heads-tp1"}
    assert read["lmcache-server", "section-7"] == plain | cpu | {"technique": "offload"}


@pytest.mark.parametrize(
    ("arm", "columns"),
    [
        ("draft-k5", {"technique": "draft", "k": 5}),
        ("eagle3-k3", {"technique": "draft", "k": 3, "distinction": "eagle3"}),
        ("7b-tp2-pp2", {"technique": "parallel", "model": "7b", "tp": 2, "pp": 2}),
        ("moe-a2.7b-tp2-ep-again", {"technique": "parallel", "model": "moe-a2.7b", "tp": 2, "ep": True}),
        ("14b-tp1-memory-0.15", {"technique": "parallel", "model": "14b", "distinction": "memory-0.15"}),
        ("prefix-cache", {}),
    ],
)
def test_an_arm_of_which_nothing_else_is_stored_is_known_by_its_name(arm, columns):
    repeat_of = arm.removesuffix("-again") if arm.endswith("-again") else None
    plain = {"technique": "none", "k": 0, "tp": 1, "pp": 1, "dp": 1, "ep": False, "replicas": 1}
    plain |= {"model": None, "draft": None, "distinction": None, "repeat_of": repeat_of}
    assert old_cells.of_name(arm) == plain | columns


def test_every_published_counter_has_a_name_of_ours():
    for file in store.paths.RESULTS_PUBLISHED.glob("*/section-*/*/cells/*/*/repeat=0.json"):
        assert not {name for name in store.read_cell(file)["counters"] if ":" in name}, file
