"""Ranks: as many processes compute as asked for, and as many took part as the requests in flight can reach."""

from ... import engines
from ...hardware.hosts import Host
from ...results.certificates import FAIL, PASS, UNKNOWN, Check
from ...servers.arm import Arm
from ...servers.fleet import Fleet
from ...servers.metrics import Snapshot
from . import ranks
from .mechanism import Mechanism

# Least utilisation of a GPU (percent), and of processor time over the busiest rank's: below, a rank took no part.
ACTIVE_UTILISATION, ACTIVE_SHARE = 5.0, 0.05


class Parallel(Mechanism):
    """One model, or copies of it, over several ranks."""

    def look(self, arm: Arm, server: Fleet, host: Host, counters: Snapshot) -> dict:
        return ranks.count(server.pids, host, engines.get(arm.engine).RANKS)

    def evidence(self, arm: Arm, before: dict, after: dict, counted: dict) -> dict:
        return {"ranks": ranks.difference(arm, before, after)}

    def check(self, cell: dict) -> Check:
        if unwanted := self.drafts_unwanted((cell["speculation"] or {}).get("drafts", 0)):
            return unwanted
        ranks_of_cell, gpus = cell.get("ranks") or {}, cell["machine"].get("gpus")
        processes, wanted = ranks_of_cell.get("processes", []), ranks_of_cell.get("wanted")
        if not wanted:
            return Check("mechanism", UNKNOWN, "the server's processes were not looked at")
        needed = wanted // ranks_of_cell["copies"] * min(ranks_of_cell["copies"], cell["concurrency"])
        if gpus is not None:
            seen = [gpu["mean_utilisation"] for gpu in gpus[:wanted]]
            needed = min(needed, len(gpus))  # those of other nodes are not seen from here
            active = (
                None
                if None in seen or not cell["machine"]["samples"]
                else sum(share >= ACTIVE_UTILISATION for share in seen)
            )
            evidence = f"GPUs at {', '.join('unknown' if share is None else f'{share:.0f} %' for share in seen)}"
            evidence += "".join(
                f"; GPU {index} sent {traffic['sent'] / 2**30:.2f} GiB over NVLink"
                for index, traffic in (ranks_of_cell.get("nvlink_bytes") or {}).items()
            )
        else:
            busiest = max((process["cpu_s"] for process in processes), default=0.0)
            active = sum(process["cpu_s"] >= ACTIVE_SHARE * busiest for process in processes) if busiest else None
            evidence = ", ".join(
                f"{process['name'].split('::')[-1]} {process['cpu_s']:.1f} s of processor" for process in processes
            )
        evidence = (
            f"{len(processes)} of {wanted} ranks have a process; "
            f"{'unknown' if active is None else active} active, {needed} needed ({evidence or 'none'})"
        )
        if processes and len(processes) != wanted or active is not None and active < needed:
            return Check("mechanism", FAIL, evidence)
        return Check("mechanism", PASS if processes and active is not None else UNKNOWN, evidence)
