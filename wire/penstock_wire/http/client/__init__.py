"""The HTTP/1.1 client on httptools: pooled connections, one exchange at a time on each.

Read in this order: `pool`, `connecting`, `connection`, `head` (of a request, and the fields of an answer's),
`answer` (its head, body or tunnel) and `peer_liveness` (a peer that ended without closing).
"""
