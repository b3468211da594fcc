"""`@penstock.batch`: callers of a function await one item each, it gets a list of them. No process, no port.

It stands on the sidecar's own pure parts: its queue, its search for bad requests, its latency model.

Read in this order: `settings` (what may be changed while it runs), `call` (one caller's item), `stream` (what
a caller of a generator reads), `function` (how the decorated function is run), `batcher` (one queue, and the
batches that are under way) and `decorator` (`@penstock.batch`, one queue for each instance).
"""
