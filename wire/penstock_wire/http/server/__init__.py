"""The HTTP/1.1 server on httptools.

Read in this order: `server` (listeners, and how they end), `acceptor` (accepts and counts connections),
`connection` (one connection: whose turn it is, and how it ends), `turns` (how a front's connections share the
loop with those of others), `reader` (its requests), `writer` (its answers), `exchange` (one request and its
answer), `head` (checks heads), `interfaces` (the server as a connection sees it), `upgrade_body` (bodies of
upgrade requests), `streams` (bodies and tunnels), `local_clients` (keeps other sites'
web pages out of `penstock run`) and `limits`.
"""
