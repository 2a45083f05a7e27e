"""Section 12: how often a chapter claims a difference between equal arms, and how small a difference it can decide."""

from ..section import Section
from . import plan

SECTION = Section(12, "12-trust", "May a claim be believed?", plan.Trust, plan.plan, plan.model_names)
