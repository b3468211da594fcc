"""What the sidecar learns from the batches that the model answered. Pure: no I/O, no asyncio, no clock.

Read in this order: `latency_model` (how long a batch of so many items takes), `throughput` (how fast the
model works), `wait_estimator` (when an arriving request would be answered), `model_pace` (all three),
`concurrency_tuner` (how many batches at once pay), `return_times` (how soon callers ask again) and
`hold_policy` (whether a free slot waits for them).
"""
