"""Handles: a class calls another endpoint like a local object.

Read in this order: `arguments` (a call's arguments, and its request), `place` (finds an endpoint), `remote`
(calls by HTTP), `loop_thread` (the event loop of calls from blocking code), `scope` (cancels a caller's
calls), `pending` (a call under way), `stream` (a call whose answer is a stream), `handle` (`Handle`),
`init_kwargs` (handles among a class's arguments), `served` (an endpoint of this process).
"""
