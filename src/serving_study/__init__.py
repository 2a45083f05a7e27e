"""LLM serving, measured: the harness behind the book's executed experiments."""

__version__ = "0.1.0"
