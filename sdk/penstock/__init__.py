"""What a model author imports: a Python class becomes a model server that takes batches."""
