"""Section 10: which technique for which workload, from every section's results."""

from ..section import Section
from .choosing import Choosing

SECTION = Section(10, "10-choosing", "Choosing a technique", Choosing, takes="some seconds")
