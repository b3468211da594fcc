"""Passes requests that are not batched to the model, one by one.

Read in this order: `passthrough` (limits, sends and answers) and `outgoing` (the request to the model).
"""
