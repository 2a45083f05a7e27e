"""`Mechanism`: what an arm is about, from the probe before its first cell to the check of each; here: nothing."""

from ...hardware.hosts import Host
from ...loads import Load
from ...results.certificates import FAIL, PASS, Check
from ...servers.arm import Arm
from ...servers.fleet import Fleet
from ...servers.metrics import Snapshot


class Mechanism:
    """An arm without a mechanism, and what the mechanisms have in common."""

    about_cache = False

    def probe(self, arm: Arm, server: Fleet, loads: tuple[Load, ...]) -> dict:
        """Figures of the start that show the mechanism at work before the first cell. Raises ServerError where it does
        nothing.
        """
        return {}

    def look(self, arm: Arm, server: Fleet, host: Host, counters: Snapshot) -> object | None:
        """What is read of the server and its machine before and after a load."""
        return None

    def evidence(self, arm: Arm, before: object, after: object, counted: dict) -> dict:
        """The difference of two looks, as the cell keeps it; `counted` are the counters' differences by neutral
        name.
        """
        return {}

    def check(self, cell: dict) -> Check:
        """Whether the mechanism happened in a cell, and no other."""
        drafts = (cell["speculation"] or {}).get("drafts", 0)
        return self.drafts_unwanted(drafts) or Check("mechanism", PASS, f"{drafts} drafts, none wanted")

    @staticmethod
    def drafts_unwanted(drafts: int) -> Check | None:
        """The failed check of an arm that drafted although it does not speculate."""
        return Check("mechanism", FAIL, f"{drafts} drafts, none wanted") if drafts else None
