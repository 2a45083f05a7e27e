"""Chapter 2: the accept-or-correct rule, tried on real distributions."""
