"""Section 3: speculative decoding with n-grams and with a draft model."""

from ..section import Section
from . import plan

SECTION = Section(3, "03-speculative-decoding", "Speculative decoding", plan.Speculation, plan.plan, plan.model_names)
