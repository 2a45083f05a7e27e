"""Section 7's mechanism, planted and found: each fault of a cache fails the check that is for it, and no figure of a
good arm.
"""

import json
from dataclasses import replace

import pytest
from fake_study import UNHEEDED, both, cells, failed, starts, tokenizer
from matplotlib import pyplot

from serving_study import files
from serving_study.analysis import claims, tables
from serving_study.chapters.kv_cache import prefix_figures, prefix_prose, prefix_views, prefixes, working_sets
from serving_study.engines import base
from serving_study.loads import Load
from serving_study.loads.prompts import SharedPrefix, WorkingSet
from serving_study.measure import sweep
from serving_study.measure.mechanisms import cache

SEQUENCE = Load(1, 5, SharedPrefix(101, 20, sequence=True), 1, 0.0)
HALF = Load(2, 8, SharedPrefix(64, 8, 0.5), 4, 0.0)
SETS = tuple(Load(1, 2, WorkingSet(64, 8, times), 1, 0.0) for times in (0.5, 1.0, 2.0, 4.0))
OTHER_LENGTH = Load(1, 2, WorkingSet(128, 8, 2.0), 1, 0.0)
BLOCKS = 32


def arm(study, name, technique="prefix", **options):
    found = study.arm(name, **({"caching": 1} | options)).variant(technique=technique)
    tokenizer(found.model.folder)
    return found


def measure(study, arms, loads, **about):
    return sweep.run(replace(study.plan(arms, **about), loads=tuple(loads)))


def mechanism(cell):
    return next(check for check in cell["certificate"]["checks"] if check["name"] == "mechanism")


def by_load(results):
    return {(cell["arm"], cell["load"]): cell for cell in map(files.read, results.store.cell_files())}


@both
def test_a_cache_gives_whole_blocks_to_later_requests_and_its_control_nothing(study):
    results = measure(
        study, [arm(study, "prefix-cache"), arm(study, "no-prefix-cache", "none", caching=0)], [SEQUENCE, HALF]
    )
    found = by_load(results)
    assert {key: cell["certificate"]["verdict"] for key, cell in found.items()} == dict.fromkeys(found, "pass"), [
        failed(cell) for cell in found.values()
    ]
    assert found["prefix-cache", SEQUENCE.name]["counters"][base.PREFIX_HITS] == 4 * 96
    assert found["prefix-cache", HALF.name]["counters"][base.PREFIX_HITS] == 4 * 64
    assert found["no-prefix-cache", SEQUENCE.name]["counters"][base.PREFIX_HITS] == 0
    table = prefixes.requests(results.frame())
    assert table[table["arm"] == "prefix-cache"]["device"].tolist() == [0, 96, 96, 96, 96]
    assert table[table["arm"] == "prefix-cache"]["recompute"].tolist() == [121, 25, 25, 25, 25]
    assert set(table[table["arm"] == "no-prefix-cache"]["source"]) == {"recompute"}


FAULTS = [
    ("a cache that no longer hits", {"later": "no-hits"}, "prefix", SEQUENCE, ["mechanism"]),
    ("a control that hits", {"caching": 1}, "none", SEQUENCE, ["cold caches"]),
    ("a control that hits under concurrency", {"caching": 1}, "none", HALF, ["cold caches"]),
    (
        "hits where nothing was shared",
        {"fault": "warm", "caching": 0},
        "prefix",
        Load(2, 8, SharedPrefix(64, 8, 0.0), 4, 0.0),
        ["mechanism"],
    ),
    (
        "an arm without a tier that has external hits",
        {"tier": 1, "kv_blocks": BLOCKS},
        "prefix",
        SETS[2],
        ["mechanism"],
    ),
    (
        "a tier that gives nothing back any more",
        {"tier": 1, "kv_blocks": BLOCKS, "later": "no-tier"},
        "offload",
        SETS[2],
        ["mechanism"],
    ),
    ("other prompts than those asked for", {"fault": "miscounts"}, "prefix", SEQUENCE, ["input tokens", "mechanism"]),
]


@both
@pytest.mark.parametrize(
    ("options", "technique", "load", "checks"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS]
)
def test_each_fault_of_a_cache_is_caught_by_its_check(study, tmp_path, monkeypatch, options, technique, load, checks):
    if later := options.get("later"):  # from the third stream on: the probe and the warm-up have been well
        monkeypatch.setenv("SWITCH", str(tmp_path / "switch.json"))
        (tmp_path / "switch.json").write_text(json.dumps([{"who": "arm", "fault": later, "after": 2}]))
        options = {name: value for name, value in options.items() if name != "later"}
    results = measure(study, [arm(study, "arm", technique, **options)], [load])
    [cell] = cells(results).values()
    assert failed(cell) == checks and cell["certificate"]["verdict"] == "fail"
    assert prefixes.requests(results.frame()).empty  # a failed cell has no figure


USELESS = [
    (
        "a cache that never hits",
        {"fault": "no-hits"},
        "prefix",
        "nowhere in the device (0 tokens from the device, 0 from below, at last)",
    ),
    (
        "a tier that gives nothing back",
        {"tier": 1, "kv_blocks": BLOCKS, "fault": "no-tier"},
        "offload",
        "nowhere in the tier below the device (0 tokens from the device, 0 from below, at last)",
    ),
    (
        "a tier that is not there",
        {"kv_blocks": BLOCKS},
        "offload",
        "nowhere in the tier below the device (0 tokens from the device, 0 from below, at last)",
    ),
]


@both
@pytest.mark.parametrize(
    ("options", "technique", "said"), [row[1:] for row in USELESS], ids=[row[0] for row in USELESS]
)
def test_an_arm_whose_cache_does_nothing_fails_before_its_sweep(study, monkeypatch, options, technique, said):
    monkeypatch.setattr(cache, "APART_S", 0.0)
    results = measure(study, [arm(study, "useless", technique, **options), arm(study, "next")], SETS[:1])
    records = starts(results)
    assert (
        records["useless"]["outcome"] == "failed"
        and records["useless"]["reason"] == f"a prompt of 72 tokens, sent {cache.ATTEMPTS + 1} times, was found {said}"
    )
    assert {cell["arm"] for cell in cells(results).values()} == {"next"} and records["next"]["figures"][
        "probe_device_tokens"
    ] == 64
    assert sum(event["event"] == "server" for event in study.events()) == 2  # it is not started once more


@both
def test_working_sets_are_evicted_above_the_cache_and_given_back_by_a_tier(study):
    results = measure(
        study,
        [arm(study, "device-only", kv_blocks=BLOCKS), arm(study, "tier", "offload", kv_blocks=BLOCKS, tier=1)],
        SETS,
    )
    found = by_load(results)
    assert {cell["certificate"]["verdict"] for cell in found.values()} == {"pass"}, {
        key: (failed(cell), mechanism(cell)["evidence"]) for key, cell in found.items()
    }
    assert [found["device-only", load.name]["asked"]["prompts"] for load in SETS] == [8, 16, 32, 64]
    assert (
        "evicted" in mechanism(found["device-only", SETS[2].name])["evidence"]
        and "evicted" not in mechanism(found["device-only", SETS[0].name])["evidence"]
    )
    table = working_sets.tiers(results.frame()).set_index(["arm", "times", "round"])
    assert (
        table.loc[("device-only", 0.5, 2), "device"] == pytest.approx(64 / 72)
        and table.loc[("device-only", 4.0, 2), "recompute"] == 1.0
    )
    assert (
        table.loc[("tier", 4.0, 2), "external"] == pytest.approx(64 / 72)
        and table.loc[("tier", 4.0, 1), "recompute"] == 1.0
    )
    assert starts(results)["tier"]["figures"]["probe_external_tokens"] == 64
    sources = working_sets.by_source(results.frame()).set_index(["arm", "source"])["requests"]
    assert sources["device-only", "device"] == 12 and sources["tier", "external"] == 48


@both
def test_a_server_that_lacks_the_tier_s_settings_does_not_start_measuring(study):
    wanted = arm(study, "lmcache", "offload", tier=1, kv_blocks=BLOCKS).variant(
        environment=study.fake.environment | study.fake.unheeded,
    )
    results = measure(study, [wanted], SETS[:1])
    assert cells(results) == {}
    [start] = map(files.read, results.store.folder.glob("*/arms/*/start.json"))
    assert start["outcome"] == "failed" and start["reason"] == study.fake.said(UNHEEDED)


@both
def test_what_an_arm_writes_to_disk_begins_empty_and_is_gone_afterwards(study, cache):
    left = cache / "scratch" / "files" / "kv" / "old"
    left.parent.mkdir(parents=True)
    left.write_text("of an earlier start")
    results = measure(
        study, [arm(study, "files", "offload", tier=1, kv_blocks=BLOCKS).variant(scratch=True)], SETS[2:3]
    )
    assert (
        [cell["certificate"]["verdict"] for cell in cells(results).values()] == ["pass"]
        and not left.exists()
        and not (cache / "scratch" / "files").exists()
    )


def test_an_arm_s_loads_are_its_own(study):
    arms = [arm(study, "prefix-cache"), arm(study, "device-only", kv_blocks=BLOCKS)]
    plan = replace(
        study.plan(arms),
        loads=(SEQUENCE, *SETS[:1]),
        only={"device-only": (SETS[0].name,), "prefix-cache": (SEQUENCE.name,)},
    )
    results = sweep.run(plan)
    assert set(by_load(results)) == {("prefix-cache", SEQUENCE.name), ("device-only", SETS[0].name)}
    assert sweep.run(plan).run is None  # all of it is found again


def test_every_table_and_figure_of_what_was_measured(study):
    """Their figures are the frames'; the fake's times are made up, so that every gain is 1."""
    arms = [
        arm(study, "prefix-cache"),
        arm(study, "no-prefix-cache", "none", caching=0),
        arm(study, "prefix-cache-again").variant(repeat_of="prefix-cache"),
    ]
    arms += [arm(study, "device-only", kv_blocks=BLOCKS), arm(study, "tier", "offload", kv_blocks=BLOCKS, tier=1)]
    shared, below = (SEQUENCE.name, HALF.name), (SETS[1].name, SETS[2].name, OTHER_LENGTH.name)
    plan = replace(
        study.plan(arms, repeats=2),
        loads=(SEQUENCE, HALF, SETS[1], SETS[2], OTHER_LENGTH),
        only={one.name: below if one.name in ("device-only", "tier") else shared for one in arms},
    )
    results = sweep.run(plan)
    frame = results.frame()
    gains = prefixes.gains(frame).iloc[0]
    assert (gains["gain"], gains["ttft_gain"]) == pytest.approx((1, 1)) and gains["claim"] == claims.EQUAL
    assert gains["hit_rate"] == pytest.approx(4 * 64 / (8 * 72))
    assert prefixes.sequence(frame).set_index("arm")["warm_hits"].to_dict() == {
        "prefix-cache": 96,
        "no-prefix-cache": 0,
        "prefix-cache-again": 96,
    }
    shown = {
        "glance": tables.glance(frame, by="load"),
        "certificate": prefix_views.certificate(frame),
        "sequence": prefix_views.sequence_table(frame, plan),
        "requests": prefix_views.requests_table(frame),
        "gains": prefix_views.gains_table(frame, price_per_hour=3.6),
        "tiers": prefix_views.tiers_table(frame),
        "sources": prefix_views.by_source_table(frame),
        "moved": prefix_views.moved_table(frame, plan),
        "break-even": prefix_views.break_even_table(frame),
        "quantised": prefix_views.quantised_table(frame, results.starts()),
    }
    text = {name: table.to_html() for name, table in shown.items()}
    assert (
        "10.08×" in text["sequence"]
        and "machine: Fake CPU against NVIDIA L4" in text["sequence"]
        and "44.4%" in text["gains"]
        and "USD a thousand requests" in text["gains"]
    )
    assert "evicted" in text["certificate"] and "1.00×" in text["sources"] and "sequence,prefix=101" in text["glance"]
    assert set(working_sets.tiers(frame)["times"]) == {1.0, 2.0} and working_sets.by_length(frame)[
        "prefix_tokens"
    ].tolist() == [64, 128]
    assert "tokens" in text["break-even"] and "tier pays " in prefix_prose.finding(frame)
    for draw in (
        prefix_figures.sequence_figure,
        prefix_figures.gains_figure,
        prefix_figures.tiers_figure,
        prefix_figures.break_even_figure,
    ):
        pyplot.close(draw(frame))
    finding = prefix_prose.finding(frame)
    assert "of 1 loads, requests a second are 0 faster, 0 slower, 1 equal within 3 % and 0 not decided" in finding
    assert "tier gives a prefix back 1.00 times" in finding


def test_a_cache_of_smaller_numbers_is_held_against_the_model_s_own(study):
    results = measure(
        study, [arm(study, "prefix-cache", kv_blocks=100), arm(study, "fp8-cache", kv_blocks=200)], [HALF]
    )
    table = prefixes.quantised(results.frame(), results.starts()).set_index("what")["ratio"]
    assert table["kv_cache_tokens"] == 2.0 and table["request_throughput, geometric mean over loads"] == pytest.approx(
        1.0
    )
