"""Guards the paths of the model that only the sidecar may request."""

from __future__ import annotations

from collections.abc import Callable

from penstock_sidecar.admission.error_responses import ErrorResponder
from penstock_sidecar.interfaces import RequestObserver
from penstock_wire.closed_paths import ClosedPaths
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import REQUEST_ID, get
from penstock_wire.http import Exchange, Service
from penstock_wire.request_ids import RequestIds


class Guard:
    """A `Service` in front of another one; it refuses requests to closed paths.

    Args:
        service: takes all other requests.
        closed: the closed paths.
        observer: counts the refused requests.
        backend: name of the backend, for error documents; called each time, since settings bring it.
        pod: name of the pod, for error documents.
        queued: the number of items that wait; each answer reports it.
    """

    def __init__(
        self,
        service: Service,
        *,
        closed: ClosedPaths,
        observer: RequestObserver,
        backend: Callable[[], str],
        pod: str,
        queued: Callable[[], int],
    ) -> None:
        self._service = service
        self._include = closed.include
        self._observer = observer
        self._responder = ErrorResponder(backend=backend, pod=pod, queued=queued)
        self._ids = RequestIds()
        self._error = PenstockError(
            Reason.FORBIDDEN, "expected another path, found one that is reserved for the sidecar"
        )

    def begin(self, exchange: Exchange) -> None:
        """Take a request (a `Service`)."""
        if not self._include(exchange.request.path):
            self._service(exchange)
            return
        self._observer.ended(self._error.status, Reason.FORBIDDEN, 0)
        request_id = self._ids.of(get(exchange.request.headers, REQUEST_ID))
        self._responder.reject(exchange, self._error, request_id)
