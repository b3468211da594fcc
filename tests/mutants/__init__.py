"""Mutants of the data plane that the tests are shown to catch; `table` has them."""
