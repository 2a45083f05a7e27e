"""Scripts that train drafts, run by path; they import one another and nothing of the harness."""
