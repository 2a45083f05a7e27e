"""Section 4: a draft trained for a target, and the target served with it."""

from ..section import Section
from .recipe import Distillation

SECTION = Section(
    4,
    "04-train-a-draft",
    "Training a draft",
    Distillation,
    takes="about half an hour: writing and training, then its servers; what stands already is not made again",
)
