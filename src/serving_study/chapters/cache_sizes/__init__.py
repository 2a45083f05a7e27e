"""Section 7's sizes: what KV caches take, by arithmetic."""

from ..section import Section
from .cache_sizes import CacheSizes

SECTION = Section("7-sizes", "07-kv-cache-sizes", "KV cache sizes", CacheSizes, takes="about ten seconds")
