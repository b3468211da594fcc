"""The queue and its decisions. Pure: no I/O, no asyncio, no clock; the time is an argument.

Read in this order: `request` (one accepted request), `batch_key` (which requests are alike), `structures`
(what the queue consists of) on `deadline_list` and `lazy_heap`, `batch_limits` (what a batch may hold),
`fair_queueing` (equal shares for tenants), `eviction` (which request leaves a full queue), `group_size` (how
many requests share a batch where some are bad), and `queue`, which uses all of them.
"""
