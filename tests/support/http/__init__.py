"""Peers of HTTP that a test scripts byte by byte, what real clients send, and what the RFCs ask.

Read in this order: `raw_client` and `stream_peer` (raw ends), `task_server` (what servers here are made of),
`late_closer` and `wrong_server` (servers that misbehave), `file_server` (files over TLS), `router_upstream`
(one in a pod's place, with a ledger), `upstream_exchange` (exchanges through our client), `called_back` (what
a fake upstream is made of), `front_server` and `front_promises` (what every front promises), `h2_client`
(frames of HTTP/2), `grpc_messages`, `hop_pair` (both ends of a hop), `client_heads` (heads as recorded),
`server_rules` and `answer_rules` (the RFCs).
"""
