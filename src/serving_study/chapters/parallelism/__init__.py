"""Chapter 5: one model over several GPUs."""
