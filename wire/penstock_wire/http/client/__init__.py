"""The HTTP/1.1 client on httptools: pooled connections, one exchange at a time on each.

Read in this order: `pool`, `connecting`, `connection`, `interfaces` (the pool as a connection sees it),
`head` (of a request, and the fields of an answer's), `request_stream` (a body that is sent as it comes),
`answer` (its head, body or tunnel) and `peer_liveness` (a peer that ended without closing).
"""
