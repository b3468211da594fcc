"""The HTTP/1.1 server on httptools.

Read in this order: `server` (listeners, and how they end), `acceptor` (accepts and counts connections),
`connection` (one connection) on `seat` (its memory, and how it makes way) and
`connection_base` (its answers), `head` (checks heads), `interfaces`
(the server as a connection sees it), `upgrade_body` (bodies of upgrade requests), `streams` (bodies and
tunnels), `local_clients` (keeps other sites' web pages out of `penstock run`) and `limits`.
"""
