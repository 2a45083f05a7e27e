"""Every known trap as a check, in one registry."""
