"""The hop between a router and its own sidecars: one connection per pod that carries many requests at once.

HTTP/1.1 has one request under way on a connection, so each request costs four system calls on each hop. Here
requests and answers are frames, and all frames of one turn of the event loop leave in one system call. Head
fields that many requests share are sent once (`heads`). A client asks for a hop by an HTTP/1.1 upgrade on the
sidecar's own port; a server that does not support it answers as usual, and the two speak HTTP/1.1.

Below it is `framing`, which HTTP/2 shares. Read in this order: `frames` (the wire format, pure), `heads`
(heads as lines and by number, pure), `bodies`, `end` (how both ends take frames), `exchange`, `rooms`,
`server` and `successor` (a sidecar's end: requests become exchanges of its `Service`), `client` (a router's
end), `asking` (the upgrade), `upstream` (chooses between hops and HTTP/1.1).
"""
