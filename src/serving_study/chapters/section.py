"""What the book knows of a section: address, notebook, parameters, and the plan of given parameters and host.

Each chapter's folder exports its own as `SECTION`; `sections` is their registry.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import paths
from ..measure.plan import Plan
from .parameters import Parameters


@dataclass(frozen=True)
class Section:
    """A section with a notebook. `plan` gives its cells, `model_names` the models they need; a section without a plan
    has `takes`, its running time.

    A further notebook of a section has an address with its subject (`7-sizes`) instead of a number."""

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
