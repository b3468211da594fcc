"""How much of anything, and how much of whose time, the HTTP front gives to a client.

Read from here each time, so that a test can shorten what it waits for.
"""

from __future__ import annotations

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Of a body that is taken whole; a stream is bounded by its reader."""
MAX_HEAD_BYTES = 64 * 1024
"""Of a request's target and fields together; also of what may stand around the pieces of a chunked body."""
MAX_FIELDS = 200
MAX_PIPELINED = 16
"""Requests that wait behind the one under way before reading pauses."""
MAX_CONNECTIONS = 16_384
BUFFER_BYTES = 256 * 1024
"""Of a stream or tunnel, received and not yet read, before reading pauses; it resumes at a quarter of it.
Likewise, of the requests that wait behind the one under way."""
UNREAD_BYTES = 64 * 1024
"""The same, of one that nobody has begun to read: its request waits."""
DRAIN_BYTES = 256 * 1024
"""Of a body that is not wanted any more: so much is read away to keep the connection."""

HEAD_SECONDS = 15.0
"""From a request's first byte to the end of its head."""
BODY_SECONDS = 60.0
"""From there to the end of a body; with a stream, between two pieces of it."""
IDLE_SECONDS = 75.0
WRITE_SECONDS = 60.0
"""How long a client may take nothing of what is written to it."""
STUCK_SECONDS = 2.0
"""The same, on a port that evicts, where a new connection needs the place."""
SEND_BUFFER_BYTES = 32 * 1024
"""What the kernel is asked to hold of what a client does not take, on a port that evicts; it doubles that."""
HANDSHAKE_SECONDS = 3.0
"""For a TLS handshake, where TLS is spoken; a reporter gives up after 2."""
LINGER_SECONDS = 2.0
"""How long a client that was refused may go on sending: closed at once, it would be reset before it read why
(RFC 9112 section 9.6)."""
SWEEP_SECONDS = 1.0
"""Between two looks at who is late; the times above are kept to within two of them, and never cut short."""
