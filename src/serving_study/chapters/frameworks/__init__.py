"""Section 8: serving frameworks on equal terms."""

from ..section import Section
from . import plan

SECTION = Section(8, "08-serving-frameworks", "Serving frameworks", plan.Frameworks, plan.plan, plan.model_names)
