"""The SDK's errors.

Tree::

    LoadError           the target cannot be served: not found, of a wrong shape, or its constructor failed
    ArgumentsError      an item does not fit the method's signature
    AnswerError         the model gave answers that cannot be used
    DeadlineExceeded    a call of `@penstock.batch` was not answered in time (a TimeoutError)
    SlowReader          a stream of `@penstock.batch` was read too slowly
    ControlError        Kubernetes refused what `penstock.Client` asked for
    EndpointNotFound    a handle's endpoint does not exist (a KeyError)
    UpstreamError       a call by a handle failed
        UpstreamTimeout     it had no answer in time (a DeadlineExceeded, too)
        CallCycle           calls go round in a circle
    CompositionError    an application cannot be made of what was bound
"""

from __future__ import annotations

from collections.abc import Sequence


class LoadError(Exception):
    """The target cannot be served; the message says what was expected and what was found."""


class ArgumentsError(Exception):
    """An item does not fit the method's signature.

    Args:
        message: what was expected and what was found.
        missing: arguments without a default that the item does not have.
        unknown: members of the item that the method does not know.
        paths: where in the item a value is of another type than the annotations say.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        unknown: Sequence[str] = (),
        paths: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.paths = tuple(paths)
        self.missing = tuple(missing)
        self.unknown = tuple(unknown)


class AnswerError(Exception):
    """The model's answers cannot be used: a wrong number of them, or a value that has no JSON."""


class DeadlineExceeded(TimeoutError):
    """A call was not answered before its deadline; the message says where it was then."""


class SlowReader(Exception):
    """A stream has ended because its reader left too many pieces unread."""


class ControlError(Exception):
    """Kubernetes refused a call of `penstock.Client`; the message says of what, and why.

    Args:
        status: of its answer; 0 where there was none.
        reason: such as Not Found.
        message: what it said.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class CompositionError(Exception):
    """An application cannot be made of what was bound; the message says what was expected and found."""


class EndpointNotFound(KeyError):
    """There is no endpoint of this name.

    Args:
        message: what was expected and where it was looked for.
        endpoint: the name.
    """

    def __init__(self, message: str, *, endpoint: str = "") -> None:
        super().__init__(message)
        self.endpoint = endpoint

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError's own is the message in quotes


class UpstreamError(Exception):
    """A call by a handle failed.

    Args:
        message: the endpoint and what happened.
        status: of the answer; 503 where no connection could be made, 502 where it was lost, 504 where time
            was over.
        reason: the answer's word for it (`x-penstock-reason`), empty for none; `unreachable`,
            `connection_lost` or `deadline` where there was no answer.
        request_id: of the request.
        backend: who answered, where the answer says so.
        endpoint: who was called.
        body: of the answer.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 500,
        reason: str = "",
        request_id: str = "",
        backend: str = "",
        endpoint: str = "",
        body: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.request_id = request_id
        self.backend = backend
        self.endpoint = endpoint
        self.body = body


class UpstreamTimeout(UpstreamError, DeadlineExceeded):
    """A call by a handle had no answer before its deadline, or the endpoint said that it would have none."""


class CallCycle(UpstreamError):
    """Calls of handles go round in a circle; the message has the endpoints, in the order of the calls."""
