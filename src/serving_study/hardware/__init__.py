"""What this machine and others have, reach and cost."""
