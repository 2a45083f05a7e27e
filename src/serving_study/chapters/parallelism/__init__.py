"""Section 5: one model over several GPUs in every way that a host allows."""

from ..section import Section
from . import plan

SECTION = Section(5, "05-parallelism", "Splitting a model over GPUs", plan.Parallelism, plan.plan, plan.model_names)
