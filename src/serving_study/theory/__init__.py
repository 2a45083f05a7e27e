"""What arithmetic predicts before anything runs."""
