"""Section 7: the KV cache, reused by requests with a shared beginning and moved to tiers below the GPU."""

from ..section import Section
from . import plan

SECTION = Section(7, "07-kv-cache", "KV cache: reuse and tiers", plan.KvCache, plan.plan, plan.model_names)
