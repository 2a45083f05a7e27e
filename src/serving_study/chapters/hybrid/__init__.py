"""Chapter 7, hybrid models: what servers said of their KV cache."""
