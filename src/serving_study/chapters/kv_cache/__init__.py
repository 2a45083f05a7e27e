"""Chapter 7: KV cache reuse and tiers."""
