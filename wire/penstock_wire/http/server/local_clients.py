"""Refuses what a web page of another site makes a browser send to a program on its user's machine.

Such a page can post to any port of the machine without a question to it (`text/plain`), and read the answers
if its own name leads to 127.0.0.1 (DNS rebinding). A browser says both: the page's site stands in `Origin`,
the name that it looked up in `Host`.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import REQUEST_ID, Headers, get
from penstock_wire.http import Exchange, Service
from penstock_wire.request_ids import RequestIds


def local_only(service: Service) -> Service:
    """Wrap a service so that it gets only requests to a name of this machine, from no other one's page.

    Args:
        service: takes these requests.
    """
    ids = RequestIds()

    def begin(exchange: Exchange) -> None:
        headers = exchange.request.headers
        error = of_another_site(headers)
        if error is None:
            service(exchange)
        else:
            exchange.answer(error.response(request_id=ids.of(get(headers, REQUEST_ID)).decode()))

    return begin


def of_another_site(headers: Headers) -> PenstockError | None:
    """Return the refusal of a request that a page of another site makes; None for any other request.

    Args:
        headers: its fields.
    """
    for name, value in headers:
        if name == b"host" and not _is_local(b"//" + value):
            what = "a Host of this machine such as localhost"
        elif name == b"origin" and not _is_local(value):
            what = "a request of a page of this machine, or of none"
        else:
            continue
        found = value[:100].decode("latin-1")
        return PenstockError(Reason.FORBIDDEN, f"expected {what}, found {found!r}")
    return None


def _is_local(url: bytes) -> bool:
    try:
        name = urlsplit(url.decode("latin-1")).hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
