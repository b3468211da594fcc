"""Answers scalers such as KEDA's over HTTP with the autoscaler's recommendation for a backend, as JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock_operator.errors import ReportRefused
from penstock_operator.kinds import BACKEND
from penstock_operator.reconcile.context import Scaled
from penstock_operator.store import ObjectKey
from penstock_wire.http import Response

PATH = "/recommendation/"
"""The path's prefix, followed by NAMESPACE/BACKEND."""

_JSON = ((b"content-type", b"application/json"),)


class Recommendations:
    """Answers requests for a recommendation."""

    def __init__(self, scaled: Mapping[ObjectKey, Scaled]) -> None:
        self._scaled = scaled

    def answer(self, path: str) -> Response:
        """Answer with the recommendation for the backend that a path names.

        Raises:
            ReportRefused: there is none. An error, not a number: a scaler would act on 0.
        """
        namespace, _, name = path.removeprefix(PATH).partition("/")
        scaled = self._scaled.get(ObjectKey(BACKEND.kind, namespace, name))
        recommendation = scaled.recommendation if scaled is not None else None
        if recommendation is None:
            raise ReportRefused(
                404,
                "no_recommendation",
                f"expected {PATH}NAMESPACE/BACKEND of a ModelBackend with spec.autoscaling, found {path}; "
                "after a start of the operator it takes some seconds",
            )
        body = {
            "desiredReplicas": recommendation.replicas,
            "replicas": recommendation.current,
            "verdict": recommendation.verdict,
            "message": recommendation.message,
            "metricsAvailable": recommendation.metrics_available,
            "inputs": recommendation.inputs.document(),
        }
        return Response(200, _JSON, msgspec.json.encode(body))
