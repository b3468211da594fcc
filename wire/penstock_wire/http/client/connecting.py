"""Connects to a server; separate from `pool` because mypyc would compile its `async with` wrongly."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, cast

from penstock_wire.addresses import join
from penstock_wire.http import ConnectFailed, ConnectTimeout

if TYPE_CHECKING:
    from penstock_wire.http.client.connection import Connection


async def connect(connection: Connection, *, seconds: float, tls: ssl.SSLContext | None) -> None:
    """Connect to a connection's peer.

    Args:
        connection: the connection, which gets the transport.
        seconds: time limit, including the handshake if there is one.
        tls: the context to check the server with; None = plain text.

    Raises:
        ConnectFailed: no connection could be made.
        ConnectTimeout: no connection was made within the limit.
    """
    host, port = connection.key
    try:
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().create_connection(
                lambda: cast("asyncio.Protocol", connection), host, port, ssl=tls
            )
    except TimeoutError as error:
        why = f"cannot connect to {join(host, port)} within {seconds:.3f} s"
        raise ConnectTimeout(why, seconds) from error
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {join(host, port)}: {error}") from error
    if connection.transport.is_closing():  # in a turn of the loop before this task's
        raise ConnectFailed(f"{join(host, port)} ended the connection as soon as it was made")
