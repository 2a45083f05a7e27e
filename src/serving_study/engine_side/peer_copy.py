"""Copies data between every pair of GPUs and checks what arrives.

    python peer_copy.py       # one JSON line: {"0-1": {"peer_access": true, "intact": true, "seconds": 0.01}, …}

Over a broken link (PCIe with access control services on, a driver that claims too much) such a copy hangs or changes
the data, and an engine on two GPUs hangs after loading its weights. The caller sets the deadline.
"""

import itertools
import json
import time

import torch

VALUES = 1 << 22


def main() -> None:
    copies = {}
    for source, target in itertools.permutations(range(torch.cuda.device_count()), 2):
        sent = torch.arange(VALUES, dtype=torch.int32, device=f"cuda:{source}")
        torch.cuda.synchronize(source)
        began = time.monotonic()
        arrived = sent.to(f"cuda:{target}")
        torch.cuda.synchronize(target)
        seconds = time.monotonic() - began
        intact = torch.equal(arrived.cpu(), torch.arange(VALUES, dtype=torch.int32))
        copies[f"{source}-{target}"] = {
            "peer_access": torch.cuda.can_device_access_peer(source, target),
            "intact": intact,
            "seconds": round(seconds, 4),
        }
    print(json.dumps(copies))


if __name__ == "__main__":
    main()
