"""Estimates from the batches that the model answered. Pure: no I/O, no asyncio, no clock.

Read in this order: `latency_model` (a batch's time by its items), `throughput` (how fast the model works),
`wait_estimator` (when an arriving request would be answered), `model_pace` (all three),
`return_times` (how soon callers ask again) and
`hold_policy` (whether a free slot waits for them).
"""
