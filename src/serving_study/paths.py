"""Where things lie: the checkout that this package belongs to, and the folders in it."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("SERVING_STUDY_ROOT") or Path(__file__).resolve().parents[2])
NOTEBOOKS = ROOT / "notebooks"
BOOK = ROOT / "book"
SECTIONS = BOOK / "sections"
DATA = ROOT / "data"
RESULTS_PUBLISHED = DATA / "results"
RESULTS = Path(os.environ.get("SERVING_STUDY_RESULTS") or RESULTS_PUBLISHED)
ENVIRONMENTS = ROOT / ".venv"
CACHE = Path(os.environ.get("SERVING_STUDY_CACHE") or ROOT / ".cache")
