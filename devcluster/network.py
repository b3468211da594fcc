"""Addresses of a cluster, and how its network namespace is wired.

Every cluster has a network namespace of its own, so all clusters use the same addresses.
"""

import dataclasses
import subprocess
from pathlib import Path

from devcluster.errors import DevclusterError

API_PORT = 6443
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
DOMAIN = "cluster.local"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a cluster.

    Attributes:
        name: Its name in Kubernetes.
        address: Its IPv4 address on the nodes' bridge.
        pod_network: The addresses of its pods, in CIDR notation.
    """

    name: str
    address: str
    pod_network: str


def node(index: int) -> Node:
    """Return the node with this number, from 0; node 0 has the control plane."""
    return Node(name=f"node{index}", address=f"192.168.77.{index + 1}", pod_network=f"10.244.{index}.0/24")


def ip_commands(first: Node) -> str:
    """Return the `ip -batch` input that wires the namespace of the first node.

    The bridge carries the node's address. A veth pair, both ends here, gives the bridge a carrier, and the
    default route is what the API server and the kubelet look up their own address by. There is no way out:
    a pod reaches its cluster and nothing else.
    """
    return "\n".join(
        (
            "link set lo up",
            "link add nodes type bridge",
            f"addr add {first.address}/24 dev nodes",
            "link add carrier0 type veth peer name carrier1",
            "link set carrier0 master nodes",
            "link set carrier0 up",
            "link set carrier1 up",
            "link set nodes up",
            "route add default dev nodes",
        )
    )


def wire(first: Node) -> None:
    """Set up the network namespace that the caller is in.

    Args:
        first: The node whose namespace it is.

    Raises:
        DevclusterError: `ip` failed, or the kernel lacks bridging.
    """
    done = subprocess.run(
        ["ip", "-batch", "-"], input=ip_commands(first), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DevclusterError(f"the cluster's network could not be made: {done.stderr.strip()}")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bridge_filter = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not bridge_filter.exists():
        raise DevclusterError("the kernel has no bridge netfilter (module br_netfilter): Services need it")
    bridge_filter.write_text("1")


def resolv_conf(namespace: str = "default") -> str:
    """Return a resolv.conf that asks the cluster's DNS the way a pod of `namespace` does."""
    return (
        f"nameserver {DNS_ADDRESS}\nsearch {namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n"
    )
