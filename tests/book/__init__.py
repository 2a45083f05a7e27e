"""A package, so that its `test_book` and the one in `tests/chapters` have different module names."""
