"""The SDK's errors.

Tree::

    LoadError           the target cannot be served: not found, of a wrong shape, or its constructor failed
    ArgumentsError      an item does not fit the method's signature
    AnswerError         the model gave answers that cannot be used
    DeadlineExceeded    a call of `@penstock.batch` was not answered in time (a TimeoutError)
    SlowReader          a stream of `@penstock.batch` was read too slowly
    ControlError        Kubernetes refused what `penstock.Client` asked for
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
