"""Requests that are not batched pass through to the model one by one.

Read in this order: `passthrough` (limits, sends and answers), `outgoing` (what the model is
sent) and `deadline_queue` (what waits).
"""
