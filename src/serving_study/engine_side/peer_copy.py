"""Copies data between every pair of GPUs and checks what arrives.

    python peer_copy.py       # one JSON line: {"0-1": {"peer_access": true, "intact": true, "seconds": 0.01}, …}

Over a link that is broken (PCIe with access control services on, a driver that claims what it cannot do) such a copy
never ends or changes the data, and an engine on two GPUs hangs after its weights are loaded. Whoever starts this sets
the deadline."""

import itertools
import json
import time

import torch

VALUES = 1 << 22


def main() -> None:
    found = {}
    for source, target in itertools.permutations(range(torch.cuda.device_count()), 2):
        sent = torch.arange(VALUES, dtype=torch.int32, device=f"cuda:{source}")
        torch.cuda.synchronize(source)
        began = time.monotonic()
        arrived = sent.to(f"cuda:{target}")
        torch.cuda.synchronize(target)
        seconds = time.monotonic() - began
        intact = torch.equal(arrived.cpu(), torch.arange(VALUES, dtype=torch.int32))
        found[f"{source}-{target}"] = {
            "peer_access": torch.cuda.can_device_access_peer(source, target),
            "intact": intact,
            "seconds": round(seconds, 4),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
