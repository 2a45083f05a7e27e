"""Chapter 4: a draft trained for a target."""
