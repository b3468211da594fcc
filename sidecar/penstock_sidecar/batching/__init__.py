"""Batching: from the queue to the model and back.

Read in this order: `dispatcher` (takes requests, gives each its outcome) with `turns` (when it looks at its
queue), `reuse` (equal requests in flight) and `cutter` (what the next batch holds), `runner` (batches with
the model), `batch` (one of them), `assembly` (the bytes of a batch, and of its answer), `item_responses`
(answers to single items), `bisection` (finds the bad requests of a failed batch), `fault_tracker` (where bad
requests keep coming), `client_stream` (what one client reads of a stream), `lone_stream` (a stream for one
client), `streaming` (one streamed answer for many clients) and `failure_log`.
"""
