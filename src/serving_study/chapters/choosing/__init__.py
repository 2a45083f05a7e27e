"""Chapter 10: which technique for which problem."""
