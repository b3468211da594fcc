"""Handles: a class calls another endpoint as if it were an object of its own.

Read in this order: `arguments` (what a call may be given, and what it sends), `place` (where an endpoint is),
`remote` (calls by HTTP), `loop_thread` (the event loop of calls from blocking code), `scope` (whose calls end
with whom), `pending` (a call under way), `stream` (one whose answer is a stream), `handle` (`Handle`),
`init_kwargs` (handles among a class's arguments), `served` (an endpoint of this process).
"""
