"""The section-5 notebook as its reader runs it: `serving-study run 5` with the real CPU engine on two cores, the
smallest arms.
"""

import json
import subprocess

import pytest
from checkouts import command
from fake_study import TIMED

from serving_study import files
from serving_study.hardware import hosts
from serving_study.results import store

pytestmark = pytest.mark.alone

MODEL = "smollm2-135m-instruct-12-heads"
TINY = (
    f"{{arms: [{{model: {MODEL}}}, {{model: {MODEL}, tp: 2}}, {{model: smollm2-135m-instruct, tp: 2}}], "
    f"twins: 0, repeats: 1, lives: 1, minutes: 0, concurrencies: [1, 2], prompts: [2, 4], output_tokens: 8}}"
)


@pytest.mark.timeout(1500)
def test_a_model_is_cut_in_two(checkout):
    words, environment = command(checkout, "5", TINY)
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=1400)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    known = store.Store(hosts.detect("cpu").name, 5, checkout / "data" / "results")
    starts = {start["arm"]: start for start in known.starts_by_key().values()}
    assert {arm: start["outcome"] for arm, start in starts.items()} == {
        "135m-12-heads-tp1": "ok",
        "135m-12-heads-tp2": "ok",
        "135m-tp2": "unsupported",
    }
    one, two = (starts[f"135m-12-heads-{split}"]["figures"] for split in ("tp1", "tp2"))
    assert one["probe_text"] == two["probe_text"] and two["kv_cache_tokens"] == pytest.approx(
        2 * one["kv_cache_tokens"], rel=0.05
    )
    cells = list(map(files.read, known.cell_files()))
    assert len(cells) == 4
    for cell in cells:
        outcomes = {check["name"]: check["outcome"] for check in cell["certificate"]["checks"]}
        assert {name for name, outcome in outcomes.items() if outcome != "pass"} <= TIMED and outcomes[
            "mechanism"
        ] == "pass"
        assert len(cell["ranks"]["processes"]) == cell["ranks"]["wanted"] == (2 if cell["arm"].endswith("tp2") else 1)
    chapter = json.loads((checkout / "book" / "sections" / "05-parallelism.ipynb").read_text())
    assert not [
        output for cell in chapter["cells"] for output in cell.get("outputs", []) if output["output_type"] == "error"
    ]
