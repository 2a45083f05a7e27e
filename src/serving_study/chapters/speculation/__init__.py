"""Section 3: speculative decoding with n-grams and with a draft model."""

from ...chapters import speculation_plan as plan
from ..section import Section

SECTION = Section(
    3, "03-speculative-decoding", "Speculative decoding", plan.SpeculativeDecoding, plan.plan, plan.model_names
)
