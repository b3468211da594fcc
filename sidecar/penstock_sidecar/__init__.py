"""The pod data plane: gathers requests into batches and keeps the model inside its concurrency.

Read in this order: `work` (one accepted request), `keys` (which requests are alike), `queue` (the pure
decisions: whose turn, what a batch holds), `dispatch` (the one coroutine that cuts batches into free slots)
with `pace` (how fast the model works), `exchange` (a batch to the model and its answer to the callers),
`handler` (a request from its arrival to its answer), `model` (is it ready), `drain` (how a pod leaves), then
`metrics`, `admin`, `config`, and `app`, which wires them.
"""
