"""The pod data plane: gathers requests into batches and keeps the model within its concurrency.

The packages, from the floor upwards; each imports only from those before it:

- `queue`: which requests are alike, whose turn it is, what the next batch holds. Pure.
- `estimators`: what the sidecar learns from batches: latency, throughput, the wait ahead. Pure.
- `protocols`: how requests of a protocol are joined into a batch, and how its answer is split. Pure.
- `model`: the model container: requests to it, whether it is ready, its configuration and warm-up.
- `admission`: whether a request may enter the queue, and the answer to one that may not.
- `batching`: batches into free slots, to the model, and each request's part of the answer back.
- `passthrough`: requests that are not batched, one by one.

Then the modules of the process, in this order: `interfaces` (what the packages expect of each other),
`path_guard` (paths that only the sidecar may ask for),
`handler` (a request from its arrival to its answer), `drain` (how a pod leaves), `metrics`, `access_log`,
`tracing`, `admin` (the admin port), `config` (the command line), `app` (wires all of it) and `__main__`.
"""
