"""Servers that somebody else started: what they say of themselves, and a section's loads against them."""
