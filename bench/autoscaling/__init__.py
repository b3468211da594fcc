"""The autoscaler in simulated time: see `simulator`, `traces`, `policies` and `__main__`."""
