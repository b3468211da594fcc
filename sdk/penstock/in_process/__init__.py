"""`@penstock.batch`: each caller of a function awaits one item's answer, the function gets a list of items.

It needs no further process and no port. It uses the sidecar's pure parts: its queue, its search for bad
requests, its latency model.

Read in this order: `costs` (of items), `settings` (can be changed at run time), `call` (one caller's item),
`stream` (the pieces for a generator's caller), `state` (for debugging, and metrics), `function` (runs the
decorated function), `batcher` (one queue, and its batches under way) and `decorator` (`@penstock.batch`, one
queue for each instance); `threaded` is the `Batcher` for callers in threads.
"""
