"""Chapter 7, sizes: what a KV cache takes, by arithmetic."""
