"""The address of the cluster's apiserver, and the credentials and CA for it."""

from __future__ import annotations

import dataclasses
import os
import ssl
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """The address of the apiserver, and the files to authenticate with.

    Args:
        url: base URL.
        namespace: the router's own.
        token_file: the mounted token, read again each time since it is rotated; None = none.
        ca_file: the mounted certificate authority; None for plain HTTP.
    """

    url: str
    namespace: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def in_cluster(
        cls, *, url: str = "", account: Path = SERVICE_ACCOUNT, namespace: str = ""
    ) -> ApiServer | None:
        """Find the apiserver of the cluster that this process runs in; None if it runs outside a cluster.

        Args:
            url: used instead of the one in the environment.
            account: folder of the mounted service account.
            namespace: used instead of the mounted one.
        """
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        token = account / "token"
        if not url and (not host or not token.exists()):
            return None
        if not url:
            url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        named = account / "namespace"
        if not namespace and named.exists():
            namespace = named.read_text().strip()
        return cls(
            url=url.rstrip("/"),
            namespace=namespace or "default",
            token_file=token if token.exists() else None,
            ca_file=account / "ca.crt" if url.startswith("https") else None,
        )

    def headers(self) -> dict[str, str]:
        fields = {"accept": "application/json", "user-agent": "penstock-router"}
        if self.token_file is not None:
            fields["authorization"] = f"Bearer {self.token_file.read_text().strip()}"
        return fields

    def tls(self) -> ssl.SSLContext | bool:
        """The TLS context that verifies the apiserver; True for the default one."""
        return True if self.ca_file is None else ssl.create_default_context(cafile=str(self.ca_file))
