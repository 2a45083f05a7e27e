"""`python -m serving_study.environments harness`: make one environment."""

import sys

from ..errors import StudyError
from . import install

try:
    install(sys.argv[1] if len(sys.argv) > 1 else "harness")
except StudyError as error:
    sys.exit(f"error: {error}")
