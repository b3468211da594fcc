"""Releases in simulated time: see `worlds`, `canary`, `rival`, `kinds` and `__main__`."""
