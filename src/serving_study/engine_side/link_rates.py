"""Measures what the links between ranks carry: copies from GPU to GPU, and all-reduces, each over message sizes.

    python link_rates.py nccl 2
    python link_rates.py gloo 2        # two processes of a CPU host

One JSON line a figure, {"name": "all-reduce", "link": "2 ranks", "bytes": 16384, "seconds": [1.1e-5, …], "gb_s": 1.4,
"bus_gb_s": 1.4}, and {"done": true} at the end. A GB is 10⁹ bytes. `bus_gb_s` is what each rank sends, 2 (n - 1) / n
of the message, as nccl-tests counts it; `seconds` are of one call, a figure a repeat. Whoever starts this sets the
deadline: over a broken link it never ends."""

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from machine_rates import REPEATS, timed

COPY_BYTES = [2**power for power in (14, 17, 21, 25, 29)]
REDUCE_BYTES = {
    "nccl": [2**power for power in (12, 14, 16, 18, 20, 22, 24, 26, 28)],
    "gloo": [2**power for power in (12, 14, 16, 18, 20, 22)],
}
REPEAT_S, CALLS = 0.05, (3, 2000)


def report(name: str, link: str, size: int, seconds: list[float], sent: float) -> None:
    typical = statistics.median(seconds)
    row = {
        "name": name,
        "link": link,
        "bytes": size,
        "seconds": [float(f"{value:.4g}") for value in seconds],
        "gb_s": round(size / typical / 1e9, 4),
        "bus_gb_s": round(sent * size / typical / 1e9, 4),
    }
    print(json.dumps(row), flush=True)


def copies(world: int) -> None:
    """Copies from each GPU to each other, one way at a time."""
    for source in range(world):
        for target in range(world):
            if source != target:
                for size in COPY_BYTES:
                    sent = torch.ones(size, dtype=torch.uint8, device=f"cuda:{source}")
                    arrived = torch.empty(size, dtype=torch.uint8, device=f"cuda:{target}")
                    copy = functools.partial(arrived.copy_, sent, non_blocking=True)
                    seconds = timed(copy, sent.device, arrived.device)
                    report("GPU to GPU", f"{source} to {target}", size, seconds, 1.0)


def all_reduces(backend: str, rank: int, world: int, meeting: str) -> None:
    """One rank's part; the first decides how many calls fill a repeat, and reports."""
    device = torch.device(f"cuda:{rank}" if backend == "nccl" else "cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=world)

    def seconds_of(values: torch.Tensor, calls: int) -> float:
        torch.distributed.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            torch.distributed.all_reduce(values)
        if backend == "nccl":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / calls

    for size in REDUCE_BYTES[backend]:
        values = torch.zeros(size // 2, dtype=torch.bfloat16, device=device)
        calls = torch.tensor([min(max(round(REPEAT_S / seconds_of(values, 5)), CALLS[0]), CALLS[1])], device=device)
        torch.distributed.broadcast(calls, 0)
        seconds = [seconds_of(values, int(calls)) for _ in range(REPEATS)]
        if rank == 0:
            report("all-reduce", f"{world} ranks", size, seconds, 2 * (world - 1) / world)
    torch.distributed.destroy_process_group()


def main() -> None:
    backend, world, *rank_arguments = sys.argv[1:]
    if rank_arguments:
        torch.set_num_threads(1)
        return all_reduces(backend, int(rank_arguments[0]), int(world), rank_arguments[1])
    if backend == "nccl":
        copies(int(world))
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | ({"GLOO_SOCKET_IFNAME": "lo"} if backend == "gloo" else {})
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, backend, world, str(rank), f"{folder}/meeting"], env=environment
            )
            for rank in range(int(world))
        ]
        codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit(f"ranks ended with {codes}")
    print(
        json.dumps(
            {
                "done": True,
                "torch": torch.__version__,
                "nccl": ".".join(map(str, torch.cuda.nccl.version())) if backend == "nccl" else None,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
