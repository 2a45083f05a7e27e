"""Scripts that train drafts: run by path like those beside this folder; they import one another and nothing of the
harness.
"""
