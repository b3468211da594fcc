"""Peers: servers that batch, each with an adapter that runs in a Python environment of its own.

`<name>.in` says what is installed, `<name>.txt` pins all of it, `serve_<name>.py` serves the bench's model
with it. An adapter does not import our packages; its settings are environment variables: `BENCH_PORT`,
`BENCH_A_MS` and `BENCH_B_MS` (a batch of W items takes a + b·W ms, one batch at a time), `BENCH_MAX_BATCH`,
`BENCH_OBJECTIVE_MS` (0 = none). Each answers `{"instances": [7]}` with what holds `[7]`, or its own
protocol's form of the same. `serve_ray_autoscaler.py` serves none: it is Ray's autoscaler in simulated time,
for `bench/autoscaling`.
"""
