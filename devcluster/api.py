"""The few calls that the devcluster itself makes to the Kubernetes API, over the standard library."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any


class Api:
    """The API server of one cluster, as its administrator.

    Args:
        pki: The folder with `ca.crt`, `admin.crt` and `admin.key`.
        host: An address that the server's certificate names.
        port: Its port.
        timeout: For every call, in seconds.
    """

    def __init__(self, pki: Path, host: str, port: int, *, timeout: float = 5.0) -> None:
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        self._host, self._port, self._timeout = host, port, timeout

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Make one call on a connection of its own.

        Args:
            method: The HTTP method.
            path: From `/`.
            body: What to send as JSON; None for no body.

        Returns:
            The status and the answer: what its JSON says, or its text when it is none.

        Raises:
            OSError: The server cannot be reached.
        """
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._context
        )
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, body=payload, headers={"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
        except http.client.HTTPException as error:  # a server that is going away answers half
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text

    def ready(self) -> bool:
        """Whether the server reports that it is ready."""
        try:
            return self.request("GET", "/readyz")[0] == http.client.OK
        except OSError:
            return False

    def node_ready(self, name: str) -> bool:
        """Whether the node is registered and its kubelet reports Ready."""
        try:
            code, node = self.request("GET", f"/api/v1/nodes/{name}")
        except OSError:
            return False
        return code == http.client.OK and any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in node.get("status", {}).get("conditions", [])
        )
