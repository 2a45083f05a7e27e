"""Section 2: why speculation with the right rule changes no distribution, shown with two real models."""

from ..section import Section
from .rule_trials import HowSpeculationWorks

SECTION = Section(2, "02-how-speculation-works", "How speculation works", HowSpeculationWorks)
