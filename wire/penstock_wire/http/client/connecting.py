"""Connects to a server. It is not in `pool` since mypyc would compile its `async with` wrongly."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, cast

from penstock_wire.addresses import join
from penstock_wire.http import ConnectFailed, ConnectTimeout

if TYPE_CHECKING:
    from penstock_wire.http.client.connection import Connection


async def connect(connection: Connection, *, seconds: float, tls: ssl.SSLContext | None) -> None:
    """Connect to the peer that a connection is for.

    Args:
        connection: it gets the transport.
        seconds: how long that may take, with the handshake where there is one.
        tls: what to check the server with; None = plain text.

    Raises:
        ConnectFailed: there is no connection.
        ConnectTimeout: there was none in that time.
    """
    host, port = connection.key
    try:
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().create_connection(
                lambda: cast("asyncio.Protocol", connection), host, port, ssl=tls
            )
    except TimeoutError as error:
        raise ConnectTimeout(f"cannot connect to {join(host, port)} within {seconds:.3f} s") from error
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {join(host, port)}: {error}") from error
