"""Section 4's further notebook: the engine's speculative methods, each on texts that differ in how much they repeat."""

from ..section import Section
from . import plan
from .plan import Methods

SECTION = Section("4-methods", "04-methods", "Which method for which text", Methods, plan.plan, plan.model_names)
