"""Measures what a machine does at most: reads and copies of memory, matrix products, copies to and from GPUs and
between them.

    python machine_rates.py bf16 cuda:0 cuda:1
    python machine_rates.py fp32 cpu

One JSON line a figure, {"name": "memory read", "device": "cuda:0", "unit": "GB/s", "values": [271.2, …], "seconds":
0.8}, and {"done": true} at the end. A GB is 10⁹ bytes, and those of a memory copy count twice, read and written; each
value is the mean of a repeat of REPEAT_S or more. Copies to and from a device use pinned memory, and are left out for a
CPU unless HOST_COPIES is set. Ends when standard input closes."""

import itertools
import json
import os
import sys
import threading
import time

import torch

REPEATS, REPEAT_S, WARM_S = 7, 0.1, 0.3
GIB = 2**30
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def synchronize(*devices: torch.device) -> None:
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def timed(call, *devices: torch.device) -> list[float]:
    """Seconds of one call by repeat, each the mean of as many calls as fill REPEAT_S, after a warm-up that counts
    them.
    """
    count, began = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - began < WARM_S:
        call()
        synchronize(*devices)
        count += 1
    count = max(1, round(count * REPEAT_S / (time.perf_counter() - began)))
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(count):
            call()
        synchronize(*devices)
        seconds.append((time.perf_counter() - began) / count)
    return seconds


def report(name: str, device: str, amount: float, unit: str, call, *devices: torch.device) -> None:
    """Print one line: the rates of `amount` over the seconds of `call`."""
    began = time.perf_counter()
    values = [amount / seconds for seconds in timed(call, *devices)]
    print(
        json.dumps(
            {
                "name": name,
                "device": device,
                "unit": unit,
                "values": [round(value, 4) for value in values],
                "seconds": round(time.perf_counter() - began, 2),
            }
        ),
        flush=True,
    )


def buffer_bytes(device: torch.device) -> int:
    """A size above any cache, at most an eighth of the free memory."""
    free = (
        torch.cuda.mem_get_info(device)[0]
        if device.type == "cuda"
        else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
    return int(min(GIB if device.type == "cuda" else GIB // 2, free // 8)) // 4096 * 4096


def memory(device: torch.device, size: int) -> None:
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    report("memory read", str(device), size / 1e9, "GB/s", source.sum, device)
    target = torch.empty_like(source)
    report("memory copy", str(device), 2 * size / 1e9, "GB/s", lambda: target.copy_(source), device)


def matrices(device: torch.device, kind: str, side: int) -> None:
    left, right = (torch.randn(side, side, device=device).to(TYPES[kind]) for _ in range(2))
    product = torch.empty_like(left)
    report(
        f"matrix {kind}", str(device), 2 * side**3 / 1e12, "TFLOP/s", lambda: torch.mm(left, right, out=product), device
    )


def host_copies(device: torch.device, size: int) -> None:
    here = torch.ones(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.empty(size, dtype=torch.uint8, device=device)
    report("host to device", str(device), size / 1e9, "GB/s", lambda: there.copy_(here, non_blocking=True), device)
    report("device to host", str(device), size / 1e9, "GB/s", lambda: here.copy_(there, non_blocking=True), device)


def peer_copies(source: torch.device, target: torch.device, size: int) -> None:
    sent = torch.ones(size, dtype=torch.uint8, device=source)
    arrived = torch.empty(size, dtype=torch.uint8, device=target)
    report(
        "GPU to GPU",
        f"{source} to {target}",
        size / 1e9,
        "GB/s",
        lambda: arrived.copy_(sent, non_blocking=True),
        source,
        target,
    )


@torch.inference_mode()
def main() -> None:
    kind, *names = sys.argv[1:]
    devices = [torch.device(name) for name in names]
    torch.set_num_threads(int(os.environ.get("THREADS") or len(os.sched_getaffinity(0))))
    for device in devices:
        size, on_gpu = buffer_bytes(device), device.type == "cuda"
        memory(device, size)
        matrices(device, kind, 8192 if on_gpu else 1024)
        if on_gpu or os.environ.get("HOST_COPIES"):
            host_copies(device, size // 4)
        if on_gpu:
            torch.cuda.empty_cache()
    for source, target in itertools.permutations(devices, 2):
        peer_copies(source, target, min(map(buffer_bytes, (source, target))) // 4)
    print(json.dumps({"done": True, "torch": torch.__version__, "threads": torch.get_num_threads()}), flush=True)


def _watch() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    main()
