"""One module a mechanism, by the arms' technique: what is probed, read before and after a load, kept as evidence, and
checked.
"""

from ...errors import ParameterError
from ...results import certificates
from .cache import Cache
from .mechanism import Mechanism
from .parallel import Parallel
from .speculation import Speculation

MECHANISMS: dict[str, Mechanism] = {
    "none": Mechanism(),
    "ngram": Speculation(every_step=False),
    "draft": Speculation(every_step=True),
    "dynamic": Speculation(every_step=False),
    "suffix": Speculation(every_step=False),
    "parallel": Parallel(),
    "prefix": Cache(),
    "offload": Cache(tier=True),
}


def of(technique: str) -> Mechanism:
    """The mechanism of a technique. Raises ParameterError for an unknown one."""
    if technique not in MECHANISMS:
        raise ParameterError("unknown technique", value=technique, allowed=", ".join(MECHANISMS))
    return MECHANISMS[technique]


def certify(cell: dict, requests: list[dict]) -> dict:
    """A cell's certificate; its arm's mechanism judges the mechanism."""
    return certificates.certify(cell, requests, of(cell["technique"]))
