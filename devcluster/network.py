"""Addresses of a cluster, and how its network namespace is wired.

Every cluster has a network namespace of its own, so all clusters use the same addresses.
"""

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path

from devcluster.errors import DevclusterError

API_PORT = 6443
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
DOMAIN = "cluster.local"
UPLINK = "uplink"
"""The name of a further node's cable inside the node."""


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
    """Return the node with this number, from 0 to 9; node 0 has the control plane."""
    return Node(name=f"node{index}", address=f"192.168.77.{index + 1}", pod_network=f"10.244.{index}.0/24")


FIRST = node(0)
"""The node that every cluster has, with the control plane."""


def ip_commands(first: Node) -> str:
    """Return the `ip -batch` input that wires the namespace of the first node.

    The bridge carries the node's address. A veth pair, both ends here, gives the bridge a carrier, and the
    default route is how the API server and the kubelet find their own address. It does not lead outside:
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


def port(worker: Node) -> str:
    """Return the name of a further node's cable at the bridge."""
    return f"port-{worker.name}"


def plug_commands(worker: Node, pid: int) -> str:
    """Return the `ip -batch` input, for the first node's namespace, that cables a further node.

    Args:
        worker: The further node.
        pid: A process in its network namespace, by its id as the caller of `ip` sees it.
    """
    return "\n".join(
        (
            f"link add {port(worker)} type veth peer name {UPLINK} netns {pid}",
            f"link set {port(worker)} master nodes",
            f"link set {port(worker)} up",
            f"route replace {worker.pod_network} via {worker.address}",
        )
    )


def worker_ip_commands(first: Node, worker: Node) -> str:
    """Return the `ip -batch` input that wires the namespace of a further node, once it is cabled.

    What is not its own goes by the first node: the control plane, and the pods of all other nodes.
    """
    return "\n".join(
        (
            "link set lo up",
            f"addr add {worker.address}/24 dev {UPLINK}",
            f"link set {UPLINK} up",
            f"route add default via {first.address}",
        )
    )


def wire(commands: str) -> None:
    """Set up the network namespace that the caller is in.

    Args:
        commands: Of `ip -batch`.

    Raises:
        DevclusterError: `ip` failed, or the kernel lacks bridging.
    """
    run_ip(commands)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bridge_filter = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not bridge_filter.exists():
        raise DevclusterError("the kernel lacks bridge netfilter (module br_netfilter), which Services need")
    bridge_filter.write_text("1")


def run_ip(commands: str, *, prefix: Sequence[str] = ()) -> None:
    """Run `ip -batch`.

    Args:
        commands: What it reads.
        prefix: A command that runs it elsewhere.

    Raises:
        DevclusterError: It failed.
    """
    done = subprocess.run(
        [*prefix, "ip", "-batch", "-"], input=commands, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DevclusterError(f"the cluster's network could not be made: {done.stderr.strip()}")


def resolv_conf(namespace: str = "default") -> str:
    """Return a resolv.conf that asks the cluster's DNS the way a pod of `namespace` does."""
    return (
        f"nameserver {DNS_ADDRESS}\nsearch {namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n"
    )
