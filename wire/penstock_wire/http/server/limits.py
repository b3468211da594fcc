"""Limits of the HTTP front for each client: sizes, counts and times.

They are read from this module at each use, so that a test can shorten them.
"""

from __future__ import annotations

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Most bytes of a body that is taken whole; a stream is bounded by its reader."""
UNASKED_BYTES = 1024 * 1024
"""Most announced bytes of a body that are taken without a look at what all connections keep."""
MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request's target and fields together; also of the framing around a chunked body's data."""
MAX_FIELDS = 200
MAX_PIPELINED = 16
"""Most requests that wait behind the one under way before reading pauses."""
MAX_CONNECTIONS = 16_384
BUFFER_BYTES = 256 * 1024
"""Most received and unread bytes of a stream or tunnel before reading pauses; it resumes at a quarter of it.
The same for the requests that wait behind the one under way."""
UNREAD_BYTES = 64 * 1024
"""The same for a body that is not being read yet: its request waits."""
FURTHER_BYTES = 1024 * 1024
"""By how much a body is read on if nothing of it was read for a while: its client may have left. That shows
behind the bytes that the client's kernel still has to send, which can be 4 MiB (`tcp_wmem`)."""
MOST_FURTHER_BYTES = 8 * FURTHER_BYTES
"""Received and unread bytes of a body beyond which it is not read on."""
DRAIN_BYTES = 256 * 1024
"""Most bytes of an unwanted body that are read and dropped to keep the connection."""

HEAD_SECONDS = 15.0
"""From a request's first byte to the end of its head."""
BODY_SECONDS = 60.0
"""From the end of the head to the end of a body; with a stream, between two pieces of it."""
STILL_SECONDS = 2.0
"""From when a body's reading paused until it is read on, to see whether its client has left."""
IDLE_SECONDS = 75.0
PING_SECONDS = 30.0
"""How long a connection of HTTP/2 with streams under way is silent before it is asked for a sign of life, and
how long that may take."""
WRITE_SECONDS = 60.0
"""How long a client can accept nothing of what is written to it."""
STUCK_SECONDS = 2.0
"""The same on a port that evicts, if a new connection needs the place."""
SEND_BUFFER_BYTES = 32 * 1024
"""Kernel buffer for unaccepted bytes, as requested on a port that evicts; the kernel doubles it."""
HANDSHAKE_SECONDS = 3.0
"""For a TLS handshake; a reporter gives up after 2."""
LINGER_SECONDS = 2.0
"""How long a refused client can go on sending: if closed at once, it would be reset before it read the reason
(RFC 9112 section 9.6)."""
SWEEP_SECONDS = 1.0
"""Between two sweeps for late clients; the times above are exceeded by up to two of them, never cut short."""
