"""Peers of HTTP that a test scripts byte by byte, what real clients send, and what the RFCs ask.

Read in this order: `raw_client` and `stream_peer` (raw ends), `task_server` (what servers here are made
of), `late_closer` and `wrong_server` (servers that misbehave), `router_upstream` (one in a pod's place,
with a ledger), `upstream_exchange` (exchanges through our client), `front_server` and `front_promises`
(what every front promises), `hop_pair` (both ends of a hop), `client_heads` (heads as recorded),
`server_rules` and `answer_rules` (the RFCs).
"""
