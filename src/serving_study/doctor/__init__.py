"""Checks for every known trap, before anything expensive starts."""
