"""What a speculative round is made of on a GPU: launches, graph replays and GPU time, from vLLM's own torch profiler.

    python benchmarks/profile_round.py baseline draft-k3

Starts each arm of section 3 with the profiler on, asks for a few tokens, and writes
`data/results/HOST/section-3/rounds.json`: per engine step, how many kernels were launched one by one, how many CUDA
graphs were replayed, and for how long the GPU was busy. The profiler slows everything down: its times explain shares,
they are not throughput."""

import glob
import gzip
import json
import sys
import tempfile
import urllib.request
from pathlib import Path

from serving_study import files
from serving_study.chapters import sections
from serving_study.results import store
from serving_study.servers import client, lifetime

TOKENS = 48


def profile(plan, arm, folder: Path) -> dict:
    traces = folder / "traces"
    arm = arm.variant(
        options=arm.options
        | {
            "profiler_config": {
                "profiler": "torch",
                "torch_profiler_dir": str(traces),
                "torch_profiler_with_stack": False,
            }
        },
        environment=arm.environment | {"VLLM_CUSTOM_SCOPES_FOR_PROFILING": "1"},
    )
    with lifetime.serve(arm, plan.host, plan.environment_of, folder) as server:
        client.complete(server.url, arm.model.name, "Once upon a time", TOKENS, 120, ignore_eos=True)
        for verb in ("start_profile", "stop_profile"):
            if verb == "stop_profile":
                client.complete(server.url, arm.model.name, "In the beginning there was", TOKENS, 120, ignore_eos=True)
            urllib.request.urlopen(
                urllib.request.Request(f"{server.url}/{verb}", data=b"", method="POST"), timeout=300
            ).read()
    return read(glob.glob(f"{traces}/**/*.json*", recursive=True))


def read(files: list[str]) -> dict:
    """Counts and sums over the worker's trace: the one with the most GPU kernels."""
    best: dict = {"kernels": -1}
    for file in files:
        raw = gzip.open(file).read() if file.endswith(".gz") else Path(file).read_bytes()
        events = json.loads(raw)["traceEvents"]
        kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        runtime: dict[str, int] = {}
        scopes: dict[str, list[float]] = {}
        for event in events:
            if event.get("cat") in ("cuda_runtime", "cuda_driver"):
                runtime[event["name"]] = runtime.get(event["name"], 0) + 1
            if event.get("cat") in ("user_annotation",) and event.get("dur"):
                scopes.setdefault(event["name"].split("(")[0][:60], []).append(event["dur"] / 1000)
        if len(kernels) > best["kernels"]:
            times = [event["ts"] for event in kernels] + [event["ts"] + event["dur"] for event in kernels]
            best = {
                "kernels": len(kernels),
                "gpu_busy_ms": sum(event["dur"] for event in kernels) / 1000,
                "span_ms": (max(times) - min(times)) / 1000 if times else 0,
                "runtime_calls": dict(sorted(runtime.items(), key=lambda item: -item[1])[:12]),
                "scopes_ms": {
                    name: {"count": len(spent), "mean": sum(spent) / len(spent)}
                    for name, spent in sorted(scopes.items(), key=lambda item: -sum(item[1]))[:14]
                },
            }
    return best


def main() -> None:
    plan = sections.plan(3)
    wanted = sys.argv[1:] or ["baseline", "draft-k3"]
    known = store.Store(plan.host.name, 3)
    out = known.folder / "rounds.json"
    found = files.read(out) if out.exists() else {}
    for arm in plan.arms:
        if arm.name in wanted:
            with tempfile.TemporaryDirectory() as folder:
                found[arm.name] = profile(plan, arm, Path(folder)) | {
                    "tokens": TOKENS,
                    "at": files.now(),
                    "vllm": plan.environment.vllm,
                    "weights": arm.weights,
                    "acceptance": arm.acceptance,
                }
            files.write(out, found)
            print(arm.name, json.dumps(found[arm.name], indent=1))


if __name__ == "__main__":
    main()
