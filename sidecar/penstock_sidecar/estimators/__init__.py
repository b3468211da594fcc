"""Estimates from the batches that the model answered. Pure: no I/O, no asyncio, no clock.

Read in this order: `robust_line`, `cost_fit` (what a batch's time depends on), `thrifty_work` (from which
work on a batch is dearer than two), `latency_model` (that time by the batch's items, or their costs),
`throughput` (how fast the model works),
`wait_estimator` (when an arriving request would be answered), `model_pace` (all three),
`return_times` (how soon callers ask again) and
`hold_policy` (whether a free slot waits for them).
"""
