"""A plan, and carrying it out."""
