"""One request's copy for one mirror."""

from __future__ import annotations

from penstock_router.mirroring.mirror import EndpointMirror
from penstock_router.pods.pod import Pod
from penstock_wire.headers import Headers
from penstock_wire.http import Request, Response


class Original:
    """An answered request, as far as its copies need it.

    Args:
        request: as received, its target without the route.
        shared: its fields for a sidecar, which requests with the same head share.
        identity: its `x-request-id`.
        asked: whether a pod was asked for the answer.
        seconds: how long the pod took.
        timeout: seconds that a copy may take.
    """

    __slots__ = ("asked", "identity", "request", "seconds", "shared", "timeout")

    def __init__(
        self,
        request: Request,
        shared: Headers,
        identity: bytes,
        asked: bool,  # noqa: FBT001 - mypyc calls faster by position
        seconds: float,
        timeout: float,
    ) -> None:
        self.request = request
        self.shared = shared
        self.identity = identity
        self.asked = asked
        self.seconds = seconds
        self.timeout = timeout


class Copy:
    """One request's copy for one mirror.

    Args:
        answer: the answer that was served; None if answers are not compared.
    """

    __slots__ = ("answer", "mirror", "original", "pod", "sent", "size")

    def __init__(self, mirror: EndpointMirror, original: Original, answer: Response | None) -> None:
        self.mirror = mirror
        self.original = original
        self.answer = answer
        self.size = len(original.request.body) + (0 if answer is None else len(answer.body))
        self.pod: Pod | None = None
        """The pod that it was sent to; None before."""
        self.sent = 0.0
        """When it was sent, in seconds of the router's clock."""
