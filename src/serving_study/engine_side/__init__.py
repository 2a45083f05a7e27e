"""Scripts that run by path in an engine's own Python environment; they import the standard library and the engine
alone.
"""
