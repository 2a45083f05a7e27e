"""A plan whose arms run in several engines, each in an environment of its own."""

import sys
from dataclasses import replace
from pathlib import Path

import fake_study
import pandas
import pytest
from fake_study import TIMED, cells, failed, starts

from serving_study import engines, environments, files
from serving_study.chapters import plans
from serving_study.doctor import checks
from serving_study.doctor.findings import WARN
from serving_study.environments import Environment
from serving_study.errors import EngineEnvironmentError
from serving_study.measure import sweep

OTHER = Environment("other", Path(sys.executable), "3.11", {"other": "1.2"})
MISSING = "no environment for Other: it could not be installed; next: make it"


def arms(study, **of_other):
    return [study.arm("first"), study.arm("second", **({"engine": "other"} | of_other))]


def of_two(study, other=OTHER, **of_other):
    plan = study.plan(plans.supported(arms(study, **of_other), {"other": other}, fake_study.HOST))
    return replace(plan, environments={"other": other})


@pytest.fixture
def study(study, monkeypatch):
    """`study.arm(name, engine="other")` is the second engine's."""

    def arm(name, engine="fake", **options):
        return fake_study.arm(study.folder / "models", name, engine=engine, **options)

    monkeypatch.setattr(study, "arm", arm)
    return study


def test_each_arm_is_measured_in_its_own_engine_and_says_which(study):
    results = sweep.run(of_two(study))
    found = cells(results)
    assert {arm: set(failed(cell)) - TIMED for (arm, *_), cell in found.items()} == {"first": set(), "second": set()}
    said = {arm: (cell["engine"], cell["engine_version"]) for (arm, *_), cell in found.items()}
    assert said == {"first": ("fake", "0.32.0"), "second": ("other", "1.2")}
    records = starts(results)
    assert [records[arm]["environment"] for arm in ("first", "second")] == ["fake", "other"]
    assert {arm: (record["engine"], record["engine_version"]) for arm, record in records.items()} == said
    run = files.read(results.run.folder / "run.json")["provenance"]
    assert run["engine_versions"] == {"vllm": "0.32.0"}
    assert run["environments"] == {"other": {"name": "other", "python": "3.11", "versions": {"other": "1.2"}}}
    frame = results.frame().set_index("arm")
    assert frame["engine"].to_dict() == {"first": "fake", "second": "other"}
    assert frame["engine_version"].astype(str).to_dict() == {"first": "0.32.0", "second": "1.2"}
    table = pandas.read_csv(results.run.folder / "starts.csv").set_index("arm")
    assert table["engine"].to_dict() == {"first": "fake", "second": "other"}
    assert results.plan.engine_in_words() == "vLLM 0.32.0 and Other 1.2"


def test_an_engine_without_an_environment_costs_its_own_arms_alone(study):
    missing = replace(OTHER, python_version="", versions={}, missing=MISSING)
    plan = of_two(study, missing)
    assert {arm.name: arm.unsupported for arm in plan.arms} == {"first": None, "second": MISSING}
    results = sweep.run(plan)
    assert [arm for arm, *_ in cells(results)] == ["first"]
    record = starts(results)["second"]
    assert (record["outcome"], record["reason"], record["engine"]) == ("unsupported", MISSING, "other")
    assert files.read(results.run.folder / "run.json")["provenance"]["environments"]["other"]["missing"] == MISSING
    assert [(event["event"]) for event in study.events("server")] == ["server"]  # the first arm's alone


def test_what_an_engine_cannot_run_is_said_before_anything_starts(study):
    plan = of_two(study, impossible="yes")
    assert [arm.unsupported for arm in plan.arms] == [None, "other has no such thing"]


def test_another_version_of_one_engine_is_another_key_for_its_arms_alone(study):
    before, newer = of_two(study), of_two(study, replace(OTHER, versions={"other": "1.3"}))
    keys = [[plan.arm_key(arm) for arm in plan.arms] for plan in (before, newer)]
    assert keys[0][0] == keys[1][0] and keys[0][1] != keys[1][1]
    alone = study.plan([before.arms[0]])
    assert alone.arm_key(alone.arms[0]) == keys[0][0]  # as in a plan that has no other engine


def test_environments_of_engines_are_made_or_say_why_not(monkeypatch):
    said = []

    def ensure(name, say):
        if name == "llama-cpp":
            raise EngineEnvironmentError("it could not be installed", value="exit code 1", next="make it")
        return Environment(name, Path("python"), "3.12", {"vllm": "0.32.0"})

    monkeypatch.setattr(environments, "ensure", ensure)
    made = plans.environments_of(["llama-cpp", "vllm", "llama-cpp"], fake_study.HOST, False, said.append)
    assert list(made) == ["llama-cpp", "vllm"] and made["vllm"].missing is None
    assert made["llama-cpp"].missing.startswith("no environment for llama.cpp: it could not be installed: exit code 1")
    assert "make it" in made["llama-cpp"].missing and "\n" not in made["llama-cpp"].missing
    [line] = said
    assert line == f"llama.cpp cannot be measured here: {made['llama-cpp'].missing}"


def test_a_dry_plan_makes_no_environment(monkeypatch):
    monkeypatch.setattr(environments, "has", lambda name: False)
    monkeypatch.setattr(environments, "ensure", lambda *_: pytest.fail("an environment was made"))
    [planned] = plans.environments_of(["llama-cpp"], fake_study.HOST, True, print).values()
    assert (planned.name, planned.versions, planned.missing) == ("llama-cpp", {}, None)


def test_the_doctor_warns_of_an_engine_without_an_environment():
    [finding] = checks.other_engine("llama-cpp", replace(OTHER, versions={}, missing=MISSING), [])
    assert finding.outcome == WARN and finding.found == MISSING


def test_every_registered_engine_keeps_the_protocol():
    assert all(isinstance(engine, engines.Engine) for engine in engines.ENGINES.values())
