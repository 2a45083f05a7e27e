"""What was measured, as it lies on disk, and whether to believe it."""
