"""What arithmetic expects, before anything runs."""
