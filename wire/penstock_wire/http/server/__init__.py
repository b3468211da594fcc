"""The HTTP/1.1 server on httptools.

Read in this order: `server` (listeners, and how they end), `acceptor` (accepts and counts connections),
`connection` (one connection) on `seat` (what it keeps, and how it makes way) and
`connection_base` (its answers), `head` (what heads must be), `interfaces`
(what a connection needs of its server), `upgrade_body` (bodies of upgrade requests), `streams` (bodies and
tunnels) and `limits`.
"""
