"""Scripts that run inside an engine's own Python environment, by path; they import the standard library and the engine
alone.
"""
