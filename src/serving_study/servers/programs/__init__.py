"""Programs that run as processes of their own beside an arm's servers; standard library alone."""
