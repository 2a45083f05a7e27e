"""Frames out of results, each idea once."""
