"""Speculation: as many drafts as asked for, accepted less often the later they stand in a round."""

from dataclasses import dataclass

from ...results.certificates import FAIL, PASS, Check
from .mechanism import Mechanism


@dataclass(frozen=True)
class Speculation(Mechanism):
    """`every_step`: each round drafts all `k` tokens, as a draft model does and a look-up does not."""

    every_step: bool

    def check(self, cell: dict) -> Check:
        speculation, k = cell["speculation"] or {}, cell["k"]
        drafts, drafted = speculation.get("drafts", 0), speculation.get("drafted_tokens", 0)
        positions = speculation.get("acceptance_by_position", [])
        evidence = (
            f"{drafts} drafts, {drafted} tokens drafted, {speculation.get('accepted_tokens', 0)} "
            f"accepted; by position {', '.join(f'{rate:.3f}' for rate in positions) or 'none'}"
        )
        if not drafts:
            return Check("mechanism", FAIL, evidence)
        falling = all(later <= earlier + 1e-9 for earlier, later in zip(positions, positions[1:], strict=False))
        rates = (*positions, speculation["acceptance_rate"])
        possible = drafted <= drafts * k and all(0 <= rate <= 1 for rate in rates)
        # An engine may draft less in an answer's last round, of which so many tokens are not wanted any more.
        asked, last = drafts * k, k * (cell["result"].get("completed") or 0)
        whole = not self.every_step or asked - last <= drafted <= asked
        good = falling and possible and whole and len(positions) == k
        return Check("mechanism", PASS if good else FAIL, evidence)
