"""A package, so that its `test_book` and the one in `tests/unit` have different module names."""
