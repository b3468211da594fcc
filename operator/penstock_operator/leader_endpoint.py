"""Keeps the leader's address as the only endpoint of the operator's Service."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock_operator.clock import Clock
from penstock_operator.desired.drift import contained
from penstock_operator.errors import ClusterError
from penstock_operator.kinds import ENDPOINT_SLICE
from penstock_operator.kube.cluster import Cluster, Obj

INTERVAL = 5.0
"""Seconds between two looks at the slice; one GET each."""


class LeaderEndpoint:
    """Keeps the EndpointSlice of a selectorless Service.

    Args:
        ports: ports of the control server, by their names in the Service.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        address: str,
        ports: Mapping[str, int],
        clock: Clock,
        log: Callable[..., None],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._log = log
        self._desired: Obj = {
            "apiVersion": ENDPOINT_SLICE.api_version,
            "kind": ENDPOINT_SLICE.kind,
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {
                    "kubernetes.io/service-name": name,
                    "endpointslice.kubernetes.io/managed-by": "penstock-operator",
                },
            },
            "addressType": "IPv6" if ":" in address else "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": word, "port": port, "protocol": "TCP"} for word, port in ports.items()],
        }

    async def publish(self) -> None:
        """Make this pod the only endpoint, unless it is already.

        Raises:
            ClusterError: the apiserver refused.
        """
        metadata = self._desired["metadata"]
        live = await self._cluster.get(ENDPOINT_SLICE, metadata["namespace"], metadata["name"])
        if live is None or not contained(self._desired, live):
            await self._cluster.apply(ENDPOINT_SLICE, self._desired)

    async def keep(self) -> None:
        """Check at intervals, since other clients can delete or edit the slice; runs until cancelled."""
        while True:
            await self._clock.sleep(INTERVAL)
            try:
                await self.publish()
            except ClusterError as error:
                self._log("not published", level="warning", error=str(error))
