"""One module a mechanism: what is looked at before and after a load, the evidence, the check."""
