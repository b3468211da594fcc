"""Reasons why a request that a mirror has drawn is not copied, or a copy has no answer: kinds and words.

The kinds are counted. The words explain the first case of each kind, in the report and in the log. They
contain nothing of the request's content.
"""

from __future__ import annotations

from penstock_router.messages.response_body import WHOLE_BYTES
from penstock_router.mirroring.copy import Original
from penstock_router.pods.pod import Pod
from penstock_wire.errors import MODEL_ANSWER
from penstock_wire.http import Request, Response

STREAM, UPGRADE, TOO_LARGE, METHOD, REFUSED = "stream", "upgrade", "too_large", "method", "refused"
"""Why a request is never copied: its own kind."""
NO_POD, NO_ROOM, IN_FLIGHT, PRESSURE = "no_pod", "no_room", "in_flight", "pressure"
ANSWER_TOO_LARGE = "answer_too_large"
"""Why a request is not copied at present."""
UNSENDABLE = "unsendable"
"""Why a copy was not sent: a bug in the router."""

SWITCHES = "it switches protocols"
_UNLIKE = frozenset({"CONNECT", "HEAD", "OPTIONS", "TRACE"})


def unfit(original: Original, answer: Response, reason: str) -> str:
    """The kind of reason why a request cannot be copied for any mirror; empty if it can.

    Args:
        reason: the answer's error reason; `MODEL_ANSWER` for an error of the model's, empty for none.
    """
    request = original.request
    if not original.asked or (reason and reason != MODEL_ANSWER):
        return REFUSED
    if request.upgrade:
        return UPGRADE
    if request.method in _UNLIKE:
        return METHOD
    if request.trailers:  # a gRPC call's messages can come as a stream, whatever its length
        return STREAM
    if request.stream is not None:
        return STREAM if request.length is None else TOO_LARGE
    if answer.stream is not None:
        return STREAM if answer.length is None else TOO_LARGE
    return ""


def unfit_words(kind: str, request: Request, answer: Response, reason: str) -> str:
    """Why a request cannot be copied, in words.

    Args:
        kind: the result of `unfit`.
        reason: as for `unfit`.
    """
    if kind == REFUSED:
        return f"the client got {answer.status} {reason} from Penstock, not from a model"
    if kind == UPGRADE:
        return SWITCHES
    if kind == METHOD:
        return f"its method is {request.method}"
    what, length = ("body", request.length) if request.stream is not None else ("answer", answer.length)
    if length is None:
        return f"its {what} has no length in its head"
    most = "" if request.stream is not None else f", and at most {WHOLE_BYTES} are kept"
    return f"its {what} has {length} bytes{most}"


def no_pod_words(pod: Pod | None) -> str:
    """Why a mirror has no pod for a copy, in words.

    Args:
        pod: the unreachable pod that the copy would go to; None if none is ready.
    """
    if pod is None:
        return "no pod of the mirror is ready"
    return f"{_pod(pod)} cannot be reached: {pod.unreachable}"


def unanswered_words(pod: Pod, status: int, why: str) -> str:
    """Why a copy that was sent has no answer of the mirror's model, in words.

    Args:
        status: the answer's status; 0 for no answer.
        why: the reason, or the error.
    """
    return f"{_pod(pod)}: {why}" if status == 0 else f"{_pod(pod)} answered {status} {why}"


def _pod(pod: Pod) -> str:
    return f"pod {pod.address.pod or f'{pod.address.host}:{pod.address.port}'}"
