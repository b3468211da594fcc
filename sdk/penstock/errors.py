"""The SDK's errors.

Tree::

    LoadError           the target cannot be served: not found, of a wrong shape, or its constructor failed
    ArgumentsError      an item does not fit the method's signature
        UnknownModel        no model has the id that a request names (a KeyError)
    AnswerError         the model gave answers that cannot be used
    DeadlineExceeded    a call of `@penstock.batch` was not answered in time (a TimeoutError)
    SlowReader          a stream of `@penstock.batch` was read too slowly
    ControlError        Kubernetes refused what `penstock.Client` asked for
    EndpointNotFound    a handle's endpoint does not exist (a KeyError)
    UpstreamError       a call by a handle failed
        UpstreamTimeout     it had no answer in time (a DeadlineExceeded, too)
        CallCycle           calls form a circle
    Panic               user code raised what is not an Exception, such as a Rust panic (a RuntimeError)
    CompositionError    the bound arguments do not make an application
"""

from __future__ import annotations

from collections.abc import Sequence


class LoadError(Exception):
    """The target cannot be served; the message says what was expected and what was found."""


class ArgumentsError(Exception):
    """An item does not fit the method's signature.

    Args:
        message: what was expected and what was found.
        missing: arguments without a default that the item lacks.
        unknown: members of the item that are not parameters of the method.
        paths: JSON paths of the item's values with another type than annotated.
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


class UnknownModel(ArgumentsError, KeyError):
    """No model has the id that a request names; a loader of `@penstock.multiplexed` may raise it, too."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError's own __str__ puts the message in quotes


class AnswerError(Exception):
    """The model's answers cannot be used: their number is wrong, or a value has no JSON form."""


class DeadlineExceeded(TimeoutError):
    """A call was not answered before its deadline; the message says how far it had come."""


class SlowReader(Exception):
    """A stream has ended because its reader left too many pieces unread."""


class Panic(RuntimeError):
    """User code raised what is not an Exception, such as a Rust panic or SystemExit; it is `__cause__`."""


class ControlError(Exception):
    """Kubernetes refused a call of `penstock.Client`; the message names the object and the reason.

    Args:
        status: status of the answer; 0 if there was none.
        reason: such as Not Found.
        message: the object, and Kubernetes' own message.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class CompositionError(Exception):
    """The bound arguments do not make an application; the message says what was expected and found."""


class EndpointNotFound(KeyError):
    """No endpoint has this name.

    Args:
        message: what was expected, and where it was searched for.
        endpoint: the name.
    """

    def __init__(self, message: str, *, endpoint: str = "") -> None:
        super().__init__(message)
        self.endpoint = endpoint

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError's own __str__ puts the message in quotes


class UpstreamError(Exception):
    """A call by a handle failed; if the method raised, it is also of that exception's class (`raised`).

    Args:
        message: the endpoint and the event.
        status: status of the answer; without an answer 503 if no connection could be made, 502 if it was
            lost, 504 if the deadline passed.
        reason: the answer's `x-penstock-reason`, empty for none; `unreachable`, `connection_lost` or
            `deadline` if there was no answer.
        request_id: id of the request.
        backend: the backend that answered, if the answer has its name.
        endpoint: the endpoint that was called.
        body: body of the answer.
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
        Exception.__init__(self, message)  # not of the class that the method raised
        self.status = status
        self.reason = reason
        self.request_id = request_id
        self.backend = backend
        self.endpoint = endpoint
        self.body = body

    def __str__(self) -> str:
        return str(self.args[0])


class UpstreamTimeout(UpstreamError, DeadlineExceeded):
    """A call by a handle had no answer before its deadline, or the endpoint answered that it would not."""


class CallCycle(UpstreamError):
    """Calls of handles form a circle; the message has the endpoints, in the order of the calls."""
