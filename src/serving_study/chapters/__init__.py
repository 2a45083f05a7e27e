"""One folder a chapter: its parameters and plan, its frames, its views."""
