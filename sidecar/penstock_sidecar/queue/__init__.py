"""The queue and its decisions. Pure: no I/O, no asyncio, no clock; the time is an argument.

Read in this order: `group_size` (how many requests share a batch if some are bad), `key` (what the requests
of a batch have in common, and which were bad lately), `request` (one accepted request), `batch_key` (which
requests are alike), `structures` (the parts of the queue) on `deadline_list` and `lazy_heap`, `batch_limits`
(what a batch may hold), `grouping` (which requests of like cost share it), `fair_queueing` (equal shares for
tenants), `eviction` (which request leaves a full queue), and `queue`, which uses all of them.
"""
