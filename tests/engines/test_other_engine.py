"""An engine that is in nothing like vLLM goes through a section's arms and certificates: nothing outside `engines/`
knows which engine it has. Its faults are planted with vLLM's (measure/test_fault_matrix.py and beside it).
"""

import re

import pytest
from fake_study import TIMED, cells, failed, starts
from other_engine import OtherEngine

from serving_study import engines, paths
from serving_study.engines import base, vllm
from serving_study.measure import sweep


@pytest.fixture(scope="module")
def engine():
    return "other"


def test_both_have_all_that_is_asked_of_an_engine():
    assert isinstance(vllm, base.Engine) and isinstance(OtherEngine(), base.Engine)
    assert engines.named({"vllm": "0.25.1"}) == "vLLM 0.25.1" and engines.named({"other": "1.2"}) == ""


def test_the_arms_of_section_3_and_two_ranks(study):
    arms = {"baseline": {}, "draft-k1": {"k": 1}, "draft-k3": {"k": 3}, "two": {"tensor_parallel_size": 2}}
    results = sweep.run(study.plan([study.arm(name, **about) for name, about in arms.items()]))
    found = {arm: cell for (arm, *_), cell in cells(results).items()}
    assert set(found) == {"baseline", "draft-k1", "draft-k3", "two"}
    assert {arm: set(failed(cell)) - TIMED for arm, cell in found.items()} == dict.fromkeys(found, set())
    assert found["baseline"]["counters"][base.GENERATED_TOKENS] == 8 * 12
    assert found["baseline"]["counters"][base.PREEMPTIONS] is None  # it has no such counter
    assert found["draft-k3"]["speculation"]["drafted_tokens"] == 3 * found["draft-k3"]["speculation"]["drafts"] > 0
    assert [process["name"] for process in found["two"]["ranks"]["processes"]] == ["other-shard-0", "other-shard-1"]
    assert starts(results)["baseline"]["figures"]["kv_cache_tokens"] == 12288
    assert results.plan.engine_in_words() == "Other 1.2"


def test_no_word_of_an_engine_stands_outside_engines():
    """But in the reader of old cells, and where environments are made."""
    words = re.compile(r"\bvllm:[a-z]|VLLM::|LMCACHE_[A-Z]|lmcache_mp")
    source = paths.ROOT / "src" / "serving_study"
    rooms = ("engines", "environments", "engine_side", "results/old_cells.py")
    there = [
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if not str(file.relative_to(source)).startswith(rooms) and words.search(file.read_text())
    ]
    assert there == []
