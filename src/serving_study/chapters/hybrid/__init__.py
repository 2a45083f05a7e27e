"""Section 7's hybrid models: what servers say of caches that are no longer one size a token."""

from ..section import Section
from . import plan

SECTION = Section(
    "7-hybrid", "07-kv-cache-hybrid", "KV cache of hybrid models", plan.Hybrid, plan.plan, plan.model_names
)
