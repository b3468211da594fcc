"""The pod data plane: gathers requests into batches and keeps the model within its concurrency.

The packages, from the floor upwards; each imports only from those before it, and from `work` (what the time
of a batch depends on):

- `queue`: finds which requests are alike, which is next, and what the next batch holds. Pure.
- `estimators`: learn from batches: latency, throughput, the wait ahead. Pure.
- `protocols`: join requests of a protocol into a batch and split its answer. Pure.
- `model`: sends requests to the model container, checks its readiness, configures it and warms it up.
- `admission`: decides whether a request may enter the queue, and makes the answer if it may not.
- `batching`: sends batches to the model when slots are free, and gives each request its part of the answer.
- `passthrough`: sends requests that are not batched, one by one.

Then the modules of the process, in this order: `interfaces` (what the packages expect of each other),
`path_guard` (paths that only the sidecar may request), `known_routers` (whose fields count as a router's),
`handler` (a request from its arrival to its answer), `drain` (how a pod leaves), `metrics`, `access_log`,
`tracing`, `admin` (the admin port), `config` (the command line), `app` (wires all of it) and `__main__`.

`artifact` is a program of its own, which brings a model's files before it starts.
"""
