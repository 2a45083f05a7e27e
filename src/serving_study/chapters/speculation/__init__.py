"""Chapter 3: speculative decoding."""
