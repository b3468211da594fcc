"""The pod data plane: gathers requests into batches and keeps the model inside its concurrency."""
