"""Results of a host `toy`: cells made up, stored as measured ones are."""

from serving_study import files
from serving_study.results import old_cells, store


def cell(
    arm,
    concurrency,
    repeat,
    throughput,
    tpot,
    ttft=100.0,
    certificate="pass",
    checks=(),
    at="2026-01-01T00:00:00Z",
    requests=128,
    acceptance=None,
):
    return {
        "host": "toy",
        "section": 3,
        "run": "r",
        "arm": arm,
        "load": f"concurrency={concurrency}",
        "concurrency": concurrency,
        "repeat": repeat,
        "key": f"{arm}{concurrency}{repeat}",
        "at": at,
        "technique": old_cells.of_name(arm)["technique"],
        "asked": {"temperature": 0.0},
        "labels": {"weights": "real", "acceptance": acceptance, "engine": "as released"},
        "speculation": None,
        "steady": None,
        "result": {
            "output_throughput": throughput,
            "median_tpot_ms": tpot,
            "p99_ttft_ms": ttft,
            "completed": requests,
            "total_output_tokens": 10 * requests,
        },
        "certificate": {"verdict": certificate, "checks": list(checks)},
    }


def measure(root, cells, model="a/model"):
    run = store.Store("toy", 3, root).new_run()
    cells = [one | {"run": run.name} for one in cells]
    files.write(
        run.folder / "run.json",
        {"host": {"gpus": [{"name": "NVIDIA Toy"}], "cpu_model": "A CPU", "cpus": 2}, "parameters": {"model": model}},
    )
    for one in cells:
        run.write_cell(one, [])
