"""The reference figures: complete, as printed, consistent with the study's own percentages; malformed files are
refused.
"""

import csv
import math
from decimal import Decimal

import pytest

from serving_study.errors import ParameterError, StoreError
from serving_study.results import reference

SECTIONS = (3, 5, 7)

# Every change against the first arm that the study prints, in per cent: {(section, metric, baseline): {arm:
# {concurrency: change}}}.
PRINTED_CHANGES = {
    (3, "total_token_throughput", "baseline"): {
        "ngram-k3": {1: 18, 4: 12, 16: 11, 64: 31},
        "draft-k1": {1: 46, 4: 46, 16: 24, 64: 68},
        "draft-k3": {1: 82, 4: 79, 16: 61, 64: 74},
        "draft-k5": {1: 83, 4: 76, 16: 73, 64: 64},
    },
    (3, "median_tpot_ms", "baseline"): {
        "ngram-k3": {1: 0, 4: -4, 16: 1, 64: 4},
        "draft-k1": {1: -31, 4: -30, 16: -20, 64: -13},
        "draft-k3": {1: -45, 4: -44, 16: -35, 64: -16},
        "draft-k5": {1: -45, 4: -43, 16: -34, 64: -5},
    },
    (3, "median_ttft_ms", "baseline"): {
        "ngram-k3": {1: -2, 4: -27, 16: -24, 64: -14},
        "draft-k1": {1: 106, 4: -6, 16: -1, 64: 5},
        "draft-k3": {1: 37, 4: 3, 16: 17, 64: 32},
        "draft-k5": {1: 54, 4: 27, 16: 20, 64: 47},
    },
    (5, "total_token_throughput", "7b-tp1"): {"7b-tp2": {1: 84, 8: 73, 32: 47}, "7b-tp4": {1: 199, 8: 155, 32: 109}},
    (5, "median_tpot_ms", "7b-tp1"): {"7b-tp2": {1: -46, 8: -39, 32: -22}, "7b-tp4": {1: -67, 8: -60, 32: -37}},
    (5, "total_token_throughput", "14b-tp2"): {"14b-pp2": {1: -42, 8: -40, 32: -34}, "14b-tp4": {1: 69, 8: 51, 32: 39}},
    (5, "median_tpot_ms", "14b-tp2"): {"14b-pp2": {1: 76, 8: 66, 32: 33}, "14b-tp4": {1: -41, 8: -33, 32: -22}},
    (5, "p99_ttft_ms", "14b-tp2"): {"14b-pp2": {1: -17, 8: -17, 32: -28}, "14b-tp4": {1: 4, 8: -3, 32: 8}},
}
PRINTED_MULTIPLES = {
    (3, "total_token_throughput", "baseline"): {
        "ngram-k3": {1: "1.18", 4: "1.12", 16: "1.11", 64: "1.31"},
        "draft-k1": {1: "1.46", 4: "1.46", 16: "1.24", 64: "1.68"},
        "draft-k3": {1: "1.82", 4: "1.79", 16: "1.61", 64: "1.74"},
        "draft-k5": {1: "1.83", 4: "1.76", 16: "1.73", 64: "1.64"},
    },
    (5, "total_token_throughput", "7b-tp1"): {"7b-tp2": {1: "1.84", 32: "1.47"}, "7b-tp4": {1: "2.99", 32: "2.09"}},
}
COMPARISONS = [
    (*key, arm, concurrency, Decimal(100 + change) / 100)
    for key, arms in PRINTED_CHANGES.items()
    for arm, changes in arms.items()
    for concurrency, change in changes.items()
] + [
    (*key, arm, concurrency, Decimal(multiple))
    for key, arms in PRINTED_MULTIPLES.items()
    for arm, multiples in arms.items()
    for concurrency, multiple in multiples.items()
]
# Printed from unrounded figures: the table's own rounded ones give the neighbouring last digit.
ROUNDED_INPUTS = {
    (3, "total_token_throughput", "baseline", "draft-k3", 1, Decimal("1.82")),
    (5, "total_token_throughput", "14b-tp2", "14b-pp2", 1, Decimal("0.58")),
}


@pytest.fixture(scope="module")
def figures():
    return reference.load()


def one(frame, *, metric, arm, host=None, concurrency=None, request=None, column="value"):
    rows = frame[(frame["metric"] == metric) & (frame["arm"] == arm)]
    if host:
        rows = rows[rows["host"] == host]
    for name, wanted in (("concurrency", concurrency), ("request", request)):
        rows = rows[rows[name].isna()] if wanted is None else rows[rows[name].eq(wanted).fillna(False)]
    assert len(rows) == 1, rows
    return rows[column].iloc[0]


@pytest.mark.parametrize("section", SECTIONS)
def test_header_and_keys_on_disk(section):
    with open(reference.FOLDER / f"section-{section}.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["section", "host", "model", "arm", "concurrency", "metric", "value"]
    keys = [tuple(row[:-1]) for row in rows[1:]]
    assert len(set(keys)) == len(keys)
    assert {key[0] for key in keys} == {str(section)}


def test_the_whole_is_the_sections_in_order(figures):
    assert list(figures.columns) == [
        "section",
        "host",
        "model",
        "arm",
        "concurrency",
        "request",
        "metric",
        "value",
        "text",
    ]
    assert figures["section"].value_counts().to_dict() == {3: 96, 5: 109, 7: 40}
    assert figures["section"].is_monotonic_increasing
    assert not figures.duplicated(reference.KEY).any()
    assert len(reference.load(5)) == 109


def test_a_row_has_a_number_or_a_text(figures):
    textual = figures["metric"] == "start_outcome"
    assert (figures["value"].isna() == textual).all()
    assert (figures["text"].notna() == textual).all()
    assert not (figures["concurrency"].notna() & figures["request"].notna()).any()


@pytest.mark.parametrize(
    "section, host, model, metric, count",
    [
        (3, "l4x1", "qwen2.5-7b", "start_outcome", 5),
        (3, "l4x1", "qwen2.5-7b", "weights_gib", 5),
        (3, "l4x1", "qwen2.5-7b", "kv_cache_tokens", 5),
        (3, "l4x1", "qwen2.5-7b", "max_concurrency", 5),
        (3, "l4x1", "qwen2.5-7b", "total_token_throughput", 20),
        (3, "l4x1", "qwen2.5-7b", "median_tpot_ms", 20),
        (3, "l4x1", "qwen2.5-7b", "median_ttft_ms", 20),
        (3, "l4x1", "qwen2.5-7b", "acceptance_rate", 16),
        (5, "a10gx4", "qwen2.5-7b", "start_outcome", 3),
        (5, "a10gx4", "qwen2.5-14b", "start_outcome", 4),
        (5, "l4x4", "qwen2.5-7b", "start_outcome", 3),
        (5, "l4x4", "qwen2.5-14b", "start_outcome", 4),
        (5, "a10gx4", "qwen2.5-14b", "kv_cache_tokens", 3),
        (5, "l4x4", "qwen2.5-14b", "kv_cache_tokens", 3),
        (5, "a10gx4", "qwen2.5-7b", "total_token_throughput", 9),
        (5, "a10gx4", "qwen2.5-7b", "median_tpot_ms", 9),
        (5, "a10gx4", "qwen2.5-7b", "median_ttft_ms", 3),
        (5, "a10gx4", "qwen2.5-14b", "total_token_throughput", 9),
        (5, "a10gx4", "qwen2.5-14b", "median_tpot_ms", 9),
        (5, "a10gx4", "qwen2.5-14b", "p99_ttft_ms", 9),
        (5, "a10gx4", "qwen2.5-14b", "startup_s", 2),
        (5, "l4x4", "qwen2.5-14b", "median_tpot_ms", 0),
        (7, "l4x1", "qwen2.5-7b", "ttft_ms", 10),
    ],
)
def test_count_per_table(figures, section, host, model, metric, count):
    wanted = {"section": section, "host": host, "model": model, "metric": metric}
    assert sum((figures[list(wanted)] == list(wanted.values())).all(axis=1)) == count


@pytest.mark.parametrize(
    "section, arm, metric, host, concurrency, value",
    [
        (3, "baseline", "kv_cache_tokens", "l4x1", None, 62512),
        (3, "draft-k1", "kv_cache_tokens", "l4x1", None, 30848),
        (3, "draft-k5", "weights_gib", "l4x1", None, 15.22),
        (3, "draft-k3", "total_token_throughput", "l4x1", 64, 1294.1),
        (3, "ngram-k3", "median_tpot_ms", "l4x1", 1, 56.54),
        (3, "draft-k1", "median_ttft_ms", "l4x1", 1, 146.6),
        (3, "ngram-k3", "acceptance_rate", "l4x1", 64, 0.346),
        (3, "draft-k1", "acceptance_rate", "l4x1", 1, 0.714),
        (5, "7b-tp4", "kv_cache_tokens", "a10gx4", None, 1175168),
        (5, "7b-tp2", "kv_cache_tokens", "l4x4", None, 446192),
        (5, "14b-pp2", "startup_s", "a10gx4", None, 4.42),
        (5, "14b-tp2", "startup_s", "a10gx4", None, 7.28),
        (5, "14b-tp1", "failure_s", "a10gx4", None, 35),
        (5, "14b-tp1", "oom_capacity_gib", "a10gx4", None, 22.06),
        (5, "14b-tp1", "oom_free_mib", "l4x4", None, 179.12),
        (5, "7b-tp2", "median_ttft_ms", "a10gx4", 32, 504.4),
        (5, "14b-tp4", "p99_ttft_ms", "a10gx4", 32, 1842.9),
        (7, "hybrid-card-tp2", "kv_gib_per_sequence", "l4x2", None, 4.65),
    ],
)
def test_spot_value(section, arm, metric, host, concurrency, value):
    assert one(reference.load(section), arm=arm, metric=metric, host=host, concurrency=concurrency) == value


def test_outcomes(figures):
    for host in ("a10gx4", "l4x4"):
        assert one(figures, arm="14b-tp1", metric="start_outcome", host=host, column="text") == "failed: out of memory"
    outcomes = figures.loc[figures["metric"] == "start_outcome", "text"]
    assert outcomes.value_counts().to_dict() == {"ok": 17, "failed: out of memory": 2}


def test_an_arm_that_failed_has_no_figure_of_a_running_server(figures):
    failed = figures[figures["text"].eq("failed: out of memory").fillna(False)]
    for row in failed.itertuples():
        metrics = set(figures.loc[(figures["host"] == row.host) & (figures["arm"] == row.arm), "metric"])
        assert metrics <= {
            "start_outcome",
            "failure_s",
            "oom_tried_mib",
            "oom_capacity_gib",
            "oom_free_mib",
            "oom_in_use_gib",
        }


def interval(section, host, metric, arm, concurrency):
    """The lowest and highest figure that prints as this one: half a unit of its last digit either way."""
    with open(reference.FOLDER / f"section-{section}.csv", encoding="utf-8", newline="") as file:
        key = [str(section), host, arm, str(concurrency), metric]
        (printed,) = [Decimal(row[6]) for row in csv.reader(file) if [row[0], row[1], row[3], row[4], row[5]] == key]
    half = Decimal(1).scaleb(printed.as_tuple().exponent) / 2
    return printed - half, printed + half


def multiples_of(frame, metric, baseline):
    """Each arm's figure as a multiple of the baseline's, of the same host, model and concurrency."""
    rows, same = frame[frame["metric"] == metric], ["section", "host", "model", "concurrency", "request"]
    base = rows.loc[rows["arm"] == baseline, [*same, "value"]]
    pairs = rows.merge(base, on=same, suffixes=("", "_baseline"))
    return pairs.assign(multiple=pairs["value"] / pairs["value_baseline"])


@pytest.mark.parametrize("section, metric, baseline, arm, concurrency, printed", COMPARISONS)
def test_printed_multiple_follows_from_the_table(section, metric, baseline, arm, concurrency, printed):
    pairs = multiples_of(reference.load(section), metric, baseline)
    multiple = one(pairs, metric=metric, arm=arm, concurrency=concurrency, column="multiple")
    host = "l4x1" if section == 3 else "a10gx4"
    low, high = interval(section, host, metric, arm, concurrency)
    base_low, base_high = interval(section, host, metric, baseline, concurrency)
    half = Decimal("0.005")
    assert low / base_high <= printed + half and high / base_low >= printed - half
    agrees = abs(multiple - float(printed)) <= 0.005 + 1e-9
    assert agrees != ((section, metric, baseline, arm, concurrency, printed) in ROUNDED_INPUTS)


@pytest.mark.parametrize("host", ["a10gx4", "l4x4"])
def test_four_gpus_hold_18_7_times_the_kv_tokens_of_one(host):
    frame = reference.load(5)
    pairs = multiples_of(frame[frame["host"] == host], "kv_cache_tokens", "7b-tp1")
    assert round(one(pairs, arm="7b-tp4", metric="kv_cache_tokens", column="multiple"), 1) == 18.7


def test_maximum_concurrency_is_kv_tokens_over_the_context_length(figures):
    starts = figures[figures["section"].isin([3, 5])].pivot_table(
        index=["section", "host", "arm"], columns="metric", values="value"
    )
    starts = starts[["kv_cache_tokens", "max_concurrency"]].dropna()
    assert len(starts) == 17
    assert ((starts["kv_cache_tokens"] / 4096 - starts["max_concurrency"]).abs() <= 0.005 + 1e-9).all()


@pytest.mark.parametrize("arm, cold_over_warm, warm", [("prefix-on", 10.01, 76.2), ("prefix-off", 0.99, 768.8)])
def test_prefix_caching_multiples(arm, cold_over_warm, warm):
    frame = reference.load(7)
    times = [one(frame, arm=arm, metric="ttft_ms", request=number) for number in range(1, 6)]
    mean = math.fsum(times[1:]) / 4
    assert mean == pytest.approx(warm, abs=0.05)
    assert round(times[0] / mean, 2) == cold_over_warm


def test_kv_arithmetic(figures):
    rows = figures[figures["host"] == "arithmetic"].pivot(index="model", columns="metric", values="value")
    assert len(rows) == 3
    assert (2 * rows["layers"] * rows["kv_heads"] * rows["head_dim"] * 2 / 1024 == rows["kv_kib_per_token"]).all()
    assert ((rows["kv_kib_per_token"] * 8192 / 1024**2 - rows["kv_gib_8k"]).abs() < 0.005).all()
    assert (rows["kv_kib_per_token"] * 131072 / 1024**2 == rows["kv_gib_128k"]).all()


def test_unknown_section():
    with pytest.raises(ParameterError) as raised:
        reference.load(4)
    assert str(raised.value).startswith("no reference figures for section: 4\n  allowed: 3, 5, 7\n  next:    ls ")


def test_no_files(tmp_path):
    with pytest.raises(StoreError, match="no reference figures"):
        reference.load(folder=tmp_path)


HEADER = "section,host,model,arm,concurrency,metric,value\n"
GOOD = "9,l4x1,m,a,1,median_tpot_ms,2.50\n"


def test_a_good_file(tmp_path):
    text = HEADER + GOOD + "9,l4x1,m,a,,start_outcome,failed: out of memory\n9,l4x1,m,a,request=2,ttft_ms,7\n"
    (tmp_path / "section-9.csv").write_text(text, encoding="utf-8")
    frame = reference.load(9, folder=tmp_path)
    assert frame["value"].tolist()[::2] == [2.5, 7.0]
    assert frame["text"].tolist()[1] == "failed: out of memory"
    assert frame["request"].tolist()[2] == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "line 1: wrong header"),
        ("host,section,model,arm,concurrency,metric,value\n" + GOOD, "line 1: wrong header"),
        (HEADER.replace("value", "value,unit") + GOOD, "line 1: wrong header"),
        (HEADER, "line 2: no figures"),
        (HEADER + GOOD + GOOD, "line 3: a second value for one key: 9,l4x1,m,a,1,median_tpot_ms"),
        (HEADER + "9,l4x1,m,a,1,median_tpot_ms\n", "line 2: wrong number of fields: 6"),
        (HEADER + GOOD + "\n", "line 3: wrong number of fields: 0"),
        (HEADER + '9,l4x1,m,a,1,median_tpot_ms,"1,248.4"\n', "line 2: unusable median_tpot_ms: 1,248.4"),
        (HEADER + "9,l4x1,m,a,1,median_tpot_ms,\n", "line 2: unusable median_tpot_ms: (empty)"),
        (HEADER + "9,l4x1,m,a,1,median_tpot_ms,nan\n", "line 2: unusable median_tpot_ms: nan"),
        (HEADER + "9,l4x1,m,a,1,median_tpot_ms,-2\n", "line 2: unusable median_tpot_ms: -2"),
        (
            HEADER + "9,l4x1,m,a,1,acceptance_rate,71.2\n",
            "line 2: unusable acceptance_rate: 71.2\n  allowed: a fraction from 0 to 1",
        ),
        (HEADER + "9,l4x1,m,a,1,median_tpot,2.5\n", "line 2: unknown metric: median_tpot"),
        (HEADER + "9,l4x1,m,a,four,median_tpot_ms,2.5\n", "line 2: unknown concurrency: four"),
        (HEADER + "9,l4x1,m,a,request=,ttft_ms,2.5\n", "line 2: unknown concurrency: request="),
        (HEADER + "9,l4x1,m,a,0,median_tpot_ms,2.5\n", "line 2: unknown concurrency: 0"),
        (HEADER + "9,l4x1,m,a,,start_outcome,FAILED\n", "line 2: unknown start_outcome: FAILED"),
        (HEADER + "3,l4x1,m,a,1,median_tpot_ms,2.5\n", "line 2: a figure of another section: 3\n  allowed: 9"),
        (HEADER + "9,,m,a,1,median_tpot_ms,2.5\n", "line 2: no usable host: ''"),
        (HEADER + "9,l4x1,m, a,1,median_tpot_ms,2.5\n", "line 2: no usable arm: ' a'"),
        (HEADER + '9,l4x1,m,a,1,median_tpot_ms,"2.5\n', "not CSV in UTF-8"),
        (b"\xff\xfe" + HEADER.encode(), "line 1: not CSV in UTF-8"),
    ],
)
def test_malformed_file_is_refused(tmp_path, text, message):
    path = tmp_path / "section-9.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StoreError) as raised:
        reference.load(9, folder=tmp_path)
    assert f"section-9.csv, {message}" in str(raised.value) or (
        message.startswith("not CSV") and message in str(raised.value)
    )
    assert "  next:    git diff" in str(raised.value)
