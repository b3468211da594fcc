"""The outcome of a try: an answer for the client, an error, or that nothing was executed."""

from __future__ import annotations

from typing import Final

from penstock_router.forwarding.request import ProxiedRequest
from penstock_router.forwarding.retry import CONNECT_FAILED, CONNECTION_CLOSED, Unexecuted
from penstock_router.messages.header_policy import AnswerFields
from penstock_router.pods.pod import UNREADY, Pod
from penstock_router.pods.pool import Pods
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import (
    TELLING_SECONDS,
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    NotAdmitted,
    NotCarried,
    PeerSilent,
    RequestNotTaken,
    RequestUnread,
    Response,
    UpstreamError,
    UpstreamTimeout,
)

UNREAD_SECONDS: Final = 1.0
"""If a pod ends a kept connection just when a request is sent on it, its reset arrives within this time. A
later reset may come from another host that has the pod's address by now."""


def failed(proxied: ProxiedRequest, pod: Pod, error: UpstreamError, pods: Pods, now: float) -> Unexecuted:
    """Judge a try that got no answer.

    Returns:
        The outcome of a try that was certainly not executed.

    Raises:
        PenstockError: the request may have been executed, or no pod can get it.
    """
    left = proxied.left
    if isinstance(error, ConnectFailed):
        if isinstance(error, ConnectTimeout) and now - proxied.sent < TELLING_SECONDS:
            raise PenstockError(Reason.DEADLINE, str(error)) from error
        pods.failed(pod, str(error))
        return Unexecuted(CONNECT_FAILED, None, str(error))
    if isinstance(error, NotAdmitted):
        return Unexecuted(CONNECTION_CLOSED, None, str(error))
    if isinstance(error, NotCarried):
        raise PenstockError(Reason.BAD_REQUEST, str(error), status=501) from error
    if isinstance(error, UpstreamTimeout):
        raise PenstockError(Reason.DEADLINE, f"no answer within {left:.3f} s ({proxied.limit})") from error
    if isinstance(error, ConnectionLost):
        early = now - proxied.sent < UNREAD_SECONDS
        if isinstance(error, RequestNotTaken) or (early and isinstance(error, RequestUnread)):
            return Unexecuted(CONNECTION_CLOSED, None, str(error))
        if isinstance(error, PeerSilent):
            pod.silent(now)
        unreadable = isinstance(error, AnswerUnreadable)
        reason = Reason.BAD_ANSWER if unreadable else Reason.MODEL_UNREACHABLE
        raise PenstockError(reason, str(error)) from error
    raise PenstockError(Reason.BAD_REQUEST, str(error)) from error


def answered(
    proxied: ProxiedRequest, pod: Pod, fields: AnswerFields, answer: Response, pods: Pods, now: float
) -> Unexecuted | None:
    """Judge a try that got an answer; returns None if the answer is for the client."""
    if fields.queued >= 0:
        pod.reports_queue(fields.queued, now)
    if not fields.refuses:
        if not fields.reason or fields.reason not in UNREADY:
            pods.reached(pod)
        return None
    word = fields.reason or "other"
    if word in UNREADY:
        pods.failed(pod, f"its model takes no requests: {answer.status} {word}")
    else:
        pods.reached(pod)
    if word == Reason.DRAINING.value:
        pods.refuses(pod)  # NB: a pod that drains does not count arrivals
    else:
        proxied.unread = fields.unread and (proxied.unread or not proxied.counted)
        proxied.counted = True
    if word == Reason.QUEUE_FULL.value:
        pods.full(pod)
    elif word == Reason.MOVED.value:
        pod.unproven = 0
    if answer.stream is not None:  # not from a sidecar: its refusals are short
        answer = Response(answer.status, answer.headers)
    return Unexecuted(word, answer)
