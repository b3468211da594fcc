"""Keys and certificates of one cluster: made with the machine's openssl, thrown away with the cluster."""

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.processes import die_with_parent

_DAYS = "3650"
_EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]


def _openssl(*arguments: str | Path) -> None:
    # NB: one that outlived a killed `up` would write into a folder that `down` removes.
    done = subprocess.run(
        ["openssl", *map(str, arguments)],
        capture_output=True, text=True, check=False, preexec_fn=die_with_parent,
    )  # fmt: skip
    if done.returncode:
        raise DevclusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-500:]}")


def authority(folder: Path, name: str) -> None:
    """Make a certificate authority: `name.crt` and `name.key`.

    Args:
        folder: Where both files go.
        name: File name and common name.
    """
    _openssl(
        *("req", "-x509", *_EC, "-days", _DAYS, "-subj", f"/CN={name}"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"),
    )


def certificate(
    folder: Path,
    name: str,
    *,
    common_name: str,
    organization: str = "",
    hosts: Sequence[str] = (),
    ca: str = "ca",
) -> None:
    """Make a certificate for a client, or for a server when it has hosts: `name.crt` and `name.key`.

    Args:
        folder: Where the files go, and where the authority's lie.
        name: File name.
        common_name: What Kubernetes reads as the user's name.
        organization: What Kubernetes reads as the user's group.
        hosts: For a server: entries such as `DNS:localhost` and `IP:127.0.0.1`.
        ca: The authority's file name.
    """
    subject = (f"/O={organization}" if organization else "") + f"/CN={common_name}"
    usage = "serverAuth,clientAuth" if hosts else "clientAuth"
    names = ["-addext", f"subjectAltName={','.join(hosts)}"] if hosts else []
    _openssl(
        *("req", "-x509", *_EC, "-days", _DAYS, "-subj", subject),
        *("-CA", folder / f"{ca}.crt", "-CAkey", folder / f"{ca}.key"),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "keyUsage=critical,digitalSignature"),
        *("-addext", f"extendedKeyUsage={usage}", *names),
        *("-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt"),
    )


def signing_key(folder: Path, name: str) -> None:
    """Make a key pair that signs ServiceAccount tokens: `name.key` and `name.pub`."""
    _openssl(
        *("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-out", folder / f"{name}.key"),
    )
    _openssl("pkey", "-in", folder / f"{name}.key", "-pubout", "-out", folder / f"{name}.pub")


def kubeconfig(folder: Path, name: str, *, server: str, cluster: str) -> str:
    """Return a kubeconfig that holds its certificates itself, so that it can be copied.

    Args:
        folder: Where `ca.crt` and the client's files lie.
        name: The client certificate's file name; also the user's name in the file.
        server: The API's address, `https://host:port`.
        cluster: The cluster's and the context's name in the file.

    Returns:
        JSON, which every reader of kubeconfigs takes: it is YAML too.
    """

    def data(file: str) -> str:
        return base64.b64encode(folder.joinpath(file).read_bytes()).decode()

    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": cluster, "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": data(f"{name}.crt"),
                        "client-key-data": data(f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": name}}],
            "current-context": cluster,
        },
        indent=1,
    )
