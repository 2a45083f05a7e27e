"""What the package index says of wheels that an engine needs: uv's own answers, and what is made of them."""

import subprocess

import pytest

from serving_study import environments
from serving_study.environments import availability, recipes

# As uv 0.13 printed them.
ABSENT = """\
Using Python 3.11.7 environment at: .venv/harness
error: No solution found when resolving dependencies
  cause: Because sglang-kernel-cpu was not found in the package registry and you require sglang-kernel-cpu, we can \
conclude that your requirements are unsatisfiable.
"""
SOURCE_ALONE = """\
Using Python 3.11.7 environment at: .venv/harness
error: No solution found when resolving dependencies
  cause: Because all versions of tensorrt-llm have no usable wheels and you require tensorrt-llm, we can conclude that \
your requirements are unsatisfiable.

hint: Wheels are required for `tensorrt-llm` because building from source is disabled for all packages
"""
OUT_OF_REACH = "error: Failed to fetch: `https://index.example/simple/tensorrt-llm/`\n  Caused by: dns error\n"


@pytest.fixture
def index(monkeypatch):
    """What uv answers, by the index asked for (None: the configured ones), and what it was asked."""
    answers, asked = {}, []

    def run(words, **how):
        if "config" in words:
            return subprocess.CompletedProcess(words, 0, "", "")
        asked.append(words)
        place = words[words.index("--default-index") + 1] if "--default-index" in words else None
        return subprocess.CompletedProcess(words, 1 if answers.get(place) else 0, "", answers.get(place) or "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(availability, "_uv", lambda: "uv")
    for variable in ("SGLANG_PYTHON", "TENSORRT_LLM_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    return answers, asked


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (ABSENT, "sglang-kernel-cpu was not found in the package registry"),
        (SOURCE_ALONE, "all versions of tensorrt-llm have no usable wheels"),
        (OUT_OF_REACH, "error: Failed to fetch: `the package index Caused by: dns error"),
    ],
)
def test_uvs_reason_in_one_line(said, reason):
    assert availability.reason(said) == reason


def test_a_wheel_that_is_not_there_is_the_reason_of_an_environment_that_is_not_made(index):
    answers, asked = index
    answers[None] = ABSENT
    made = environments.obtain("sglang-cpu")
    assert made.missing.startswith("no environment for SGLang: the package index has no wheel of sglang-kernel-cpu")
    assert "was not found in the package registry" in made.missing and "SGLANG_PYTHON=PYTHON" in made.missing
    (words,) = asked
    assert {"--dry-run", "--no-deps"} <= set(words) and words[words.index("--only-binary") + 1] == ":all:"


def test_a_stub_is_no_wheel_and_the_vendors_index_is_asked_too(index):
    answers, asked = index
    answers |= {None: SOURCE_ALONE, "https://pypi.nvidia.com": OUT_OF_REACH}
    missing = environments.obtain("tensorrt-llm").missing
    assert "no usable wheels; https://pypi.nvidia.com: error: Failed to fetch" in missing and len(asked) == 2
    answers["https://pypi.nvidia.com"] = None
    assert "https://pypi.nvidia.com: it has a wheel" in environments.obtain("tensorrt-llm").missing


def test_a_wheel_that_came_is_said(index):
    assert "has a wheel of sglang-kernel-cpu now" in environments.obtain("sglang-cpu").missing


def test_an_environment_has_a_lock_file_or_a_wheel_that_it_waits_for():
    locks = {name for name in recipes.RECIPES if (environments.paths.ROOT / "env" / f"{name}.lock").is_file()}
    assert locks == {name for name, recipe in recipes.RECIPES.items() if not recipe.wheel}
    assert all(recipe.otherwise for recipe in recipes.RECIPES.values() if recipe.wheel)


def test_without_uv_nothing_is_claimed_of_the_index(monkeypatch):
    monkeypatch.setattr(availability, "_uv", lambda: None)
    assert availability.lacking("numpy") == "uv is not there to ask the package index"


def test_uv_itself_of_an_index_that_has_nothing(tmp_path):
    assert availability.lacking("sglang-kernel-cpu", tmp_path.as_uri()) == (
        "sglang-kernel-cpu was not found in the package registry"
    )
