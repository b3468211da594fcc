"""The hop between a router and its own sidecars: one connection a pod that carries many requests at once.

HTTP/1.1 has one request under way on a connection, so each request costs four system calls on each hop. Here
requests and answers are frames, and what one turn of the event loop makes of them leaves in one system call.
What heads have in common is sent once (`heads`). A client asks for it by an HTTP/1.1 upgrade on the sidecar's
own port; a server that does not know it answers as it would, and HTTP/1.1 is spoken there.

Read in this order: `frames` (what is on the wire, pure), `heads` (heads as lines and by number, pure),
`bodies` (what is sent and read piece by piece), `link` (what both ends of a connection do), `exchange` and
`server` and `successor` (a sidecar's end: requests become exchanges of its `Service`), `call` and `client` (a
router's end), `asking` (the upgrade), `upstream` (which pods have a connection, and what goes over HTTP/1.1).
"""
