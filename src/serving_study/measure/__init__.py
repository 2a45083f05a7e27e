"""Plans of measurements, and carrying them out."""
