"""A model as an engine is given it, and what its config.json alone says."""
