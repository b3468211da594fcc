"""The control plane's command lines and objects: etcd, API server, controllers, scheduler, DNS.

All run as plain processes in the first node's namespaces. Nothing here starts anything.
"""

from typing import Any

from devcluster import pki
from devcluster.network import (
    API_PORT,
    API_SERVICE_ADDRESS,
    DNS_ADDRESS,
    DOMAIN,
    POD_NETWORK,
    SERVICE_NETWORK,
    Node,
)
from devcluster.paths import State
from devcluster.programs import program

ETCD_PORT = 2379
_GATES = "--feature-gates=HPAScaleToZero=true"
"""An HPA that may go to zero: off by default before Kubernetes 1.37."""
_ISSUER = f"https://kubernetes.default.svc.{DOMAIN}"
# Clients of the API: file name → (user, group).
_CLIENTS = {
    "admin": ("penstock-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "coredns": ("system:coredns", ""),
    "apiserver-kubelet": ("kube-apiserver-kubelet-client", "system:masters"),
}


def write_pki(state: State, node: Node) -> None:
    """Make the authorities, the API server's certificate and the clients' certificates and kubeconfigs.

    Args:
        state: Where the files go.
        node: The node that has the control plane.
    """
    state.pki.mkdir(mode=0o700)
    pki.authority(state.pki, "ca")
    pki.authority(state.pki, "front-proxy-ca")
    pki.signing_key(state.pki, "service-account")
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}"]
    addresses = ["127.0.0.1", API_SERVICE_ADDRESS, node.address]
    pki.certificate(
        state.pki,
        "apiserver",
        common_name="kube-apiserver",
        hosts=[
            *(f"DNS:{name}" for name in [*names, "localhost"]),
            *(f"IP:{address}" for address in addresses),
        ],
    )
    pki.certificate(state.pki, "front-proxy", common_name="front-proxy-client", ca="front-proxy-ca")
    for file, (user, group) in _CLIENTS.items():
        pki.certificate(state.pki, file, common_name=user, organization=group)
        write_kubeconfig(state, file, node)


def write_kubeconfig(state: State, client: str, node: Node) -> None:
    """Write `conf/<client>.kubeconfig`, which reaches the API inside the cluster's network.

    Args:
        state: Where the client's certificate lies and the file goes.
        client: The certificate's file name.
        node: The node that has the control plane.
    """
    text = pki.kubeconfig(state.pki, client, server=f"https://{node.address}:{API_PORT}", cluster=state.name)
    path = state.conf / f"{client}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(text)


def etcd() -> list[str]:
    """Return the command of etcd. Its data is in memory and never synced: it ends with the cluster."""
    return [
        str(program("etcd", "etcd")),
        "--name=etcd",
        "--data-dir=/run/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls=http://127.0.0.1:{ETCD_PORT}",
        f"--advertise-client-urls=http://127.0.0.1:{ETCD_PORT}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=etcd=http://127.0.0.1:2380",
        "--log-level=warn",
    ]


def apiserver(state: State, node: Node) -> list[str]:
    """Return the command of the API server."""
    folder = state.pki
    return [
        str(program("kubernetes", "kube-apiserver")),
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--advertise-address={node.address}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={folder}/ca.crt",
        f"--tls-cert-file={folder}/apiserver.crt",
        f"--tls-private-key-file={folder}/apiserver.key",
        f"--service-account-issuer={_ISSUER}",
        f"--service-account-key-file={folder}/service-account.pub",
        f"--service-account-signing-key-file={folder}/service-account.key",
        # DNS does not have the node's name: by name, logs and exec would fail.
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={folder}/apiserver-kubelet.crt",
        f"--kubelet-client-key={folder}/apiserver-kubelet.key",
        # What an aggregated API (metrics-server, an adapter) needs.
        f"--requestheader-client-ca-file={folder}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={folder}/front-proxy.crt",
        f"--proxy-client-key-file={folder}/front-proxy.key",
        "--profiling=false",
        _GATES,
    ]


def controller_manager(state: State) -> list[str]:
    """Return the command of the controller manager.

    It is the only replica, so it does not hold a lease: on two busy cores a missed renewal would end it. It
    evaluates autoscalers every 2 s instead of 15, so that a test sees them act.
    """
    config = f"{state.conf}/controller-manager.kubeconfig"
    return [
        str(program("kubernetes", "kube-controller-manager")),
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        f"--cluster-cidr={POD_NETWORK}",
        "--use-service-account-credentials=true",
        f"--root-ca-file={state.pki}/ca.crt",
        f"--service-account-private-key-file={state.pki}/service-account.key",
        f"--cluster-signing-cert-file={state.pki}/ca.crt",
        f"--cluster-signing-key-file={state.pki}/ca.key",
        "--horizontal-pod-autoscaler-sync-period=2s",
        _GATES,
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def scheduler(state: State) -> list[str]:
    """Return the command of the scheduler."""
    config = f"{state.conf}/scheduler.kubeconfig"
    return [
        str(program("kubernetes", "kube-scheduler")),
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def coredns(state: State) -> list[str]:
    """Return the command of the cluster's DNS."""
    return [str(program("coredns", "coredns")), "-conf", f"{state.conf}/Corefile"]


def corefile(state: State, node: Node) -> str:
    """Return CoreDNS' configuration: the cluster's zone and nothing else, no cache, answers live 1 s.

    Its plugins are those that `go/coredns/main.go` links.
    """
    return f""".:53 {{
    bind {node.address}
    errors
    ready 127.0.0.1:8181
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {state.conf}/coredns.kubeconfig {state.name}
        pods insecure
        ttl 1
    }}
}}
"""


def _object(api: str, kind: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, **fields.pop("metadata", {})}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def bootstrap_objects(node: Node) -> list[tuple[str, dict[str, Any]]]:
    """Return what the cluster's DNS needs in the API: rights, the Service, and where it leads.

    CoreDNS is a process of the node, so its Service has no selector and its EndpointSlice is ours.

    Args:
        node: The node that CoreDNS runs on.

    Returns:
        Pairs of the path to post to and the object.
    """
    rbac, discovery = "rbac.authorization.k8s.io", "discovery.k8s.io"
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    return [
        (
            f"/apis/{rbac}/v1/clusterroles",
            _object(
                f"{rbac}/v1",
                "ClusterRole",
                "system:coredns",
                rules=[
                    {
                        "apiGroups": [""],
                        "resources": ["services", "pods", "namespaces"],
                        "verbs": ["list", "watch"],
                    },
                    {"apiGroups": [discovery], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
                ],
            ),
        ),
        (
            f"/apis/{rbac}/v1/clusterrolebindings",
            _object(
                f"{rbac}/v1",
                "ClusterRoleBinding",
                "system:coredns",
                roleRef={"apiGroup": rbac, "kind": "ClusterRole", "name": "system:coredns"},
                subjects=[{"apiGroup": rbac, "kind": "User", "name": "system:coredns"}],
            ),
        ),
        (
            "/api/v1/namespaces/kube-system/services",
            _object(
                "v1", "Service", "kube-dns", "kube-system", spec={"clusterIP": DNS_ADDRESS, "ports": ports}
            ),
        ),
        (
            f"/apis/{discovery}/v1/namespaces/kube-system/endpointslices",
            _object(
                f"{discovery}/v1",
                "EndpointSlice",
                "kube-dns-processes",
                "kube-system",
                metadata={"labels": {"kubernetes.io/service-name": "kube-dns"}},
                addressType="IPv4",
                endpoints=[{"addresses": [node.address], "conditions": {"ready": True}}],
                ports=ports,
            ),
        ),
    ]
