"""What the book knows of one section: address, notebook, parameters, and the plan that parameters and host come to.

Each chapter's folder exports its own as `SECTION`; `sections` is the registry of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import paths
from ..measure.plan import Plan
from .parameters import Parameters


@dataclass(frozen=True)
class Section:
    """A section with a notebook: `plan` makes its cells known beforehand and `model_names` what they need; of one that
    has none, `takes` is how long it runs.

    A second notebook of a section has an address after its subject (`7-sizes`) in place of the number.
    """

    number: int | str
    name: str
    title: str
    parameters: type[Parameters]
    plan: Callable[..., Plan] | None = None
    model_names: Callable[..., list[str]] | None = None
    takes: str = "about a minute"

    def place(self) -> tuple[int, bool]:
        """What the registry sorts by."""
        return int(str(self.number).split("-")[0]), isinstance(self.number, str)

    @property
    def measures(self) -> bool:
        return self.plan is not None

    @property
    def notebook(self) -> Path:
        return paths.NOTEBOOKS / f"{self.name}.ipynb"
