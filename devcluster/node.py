"""One node: its private mounts, containerd, kubelet, kube-proxy, and how pods get their network.

Whatever these programs write to the machine's own folders would be shared by two clusters and left behind
by one: the node therefore has its own `/run`, `/var/log` and `/var/lib`, in its mount namespace alone.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from devcluster import pki
from devcluster.controlplane import write_kubeconfig
from devcluster.errors import DevclusterError
from devcluster.network import DNS_ADDRESS, DOMAIN, FIRST, POD_NETWORK, Node
from devcluster.paths import State
from devcluster.programs import COMPONENTS, program

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "localhost/penstock-devcluster/pause:1"
VERIFIERS = "verifiers"
"""The folder of containerd's with programs that may refuse a pull."""
LOADING_TAINT = "devcluster.penstock.dev/loading"
"""On a further node until it has the images that the others have."""
HIDDEN_FOLDERS = (Path("/run"), Path("/var/run"), Path("/var/log"), Path("/var/lib"))
# A kubelet sets these kernel-wide. It leaves alone what has its value already, so it is shown these instead.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def _mount(*arguments: str | Path) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DevclusterError(f"mount {' '.join(map(str, arguments))} failed: {done.stderr.strip()}")


def mount_private_folders(state: State) -> None:
    """Give the calling mount namespace the node's own folders.

    Args:
        state: The cluster; images, volumes and pod logs are kept in its folder, the rest in memory.

    Raises:
        DevclusterError: A mount failed.
    """
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/var/log")
    upper, work = Path("/run/penstock/var-lib"), Path("/run/penstock/var-lib-work")
    upper.mkdir(parents=True)
    work.mkdir()
    _mount("-t", "overlay", "-o", f"lowerdir=/var/lib,upperdir={upper},workdir={work}", "overlay", "/var/lib")
    for place in ("/var/lib/kubelet", "/var/lib/containerd", "/var/log/pods"):
        kept = state.root / Path(place).name
        kept.mkdir(exist_ok=True)
        Path(place).mkdir(exist_ok=True)
        _mount("--bind", kept, place)
    for name, value in KUBELET_SYSCTLS.items():
        target = Path("/proc/sys") / name
        if target.exists():
            shown = Path("/run/penstock/sysctl") / name
            shown.parent.mkdir(parents=True, exist_ok=True)
            shown.write_text(f"{value}\n")
            _mount("--bind", shown, target)


def write_configuration(
    state: State, node: Node, *, first: Node, cgroup_root: str, cgroup_version: int
) -> None:
    """Write every configuration file of the node's programs.

    Args:
        state: Where the files go.
        node: The node.
        first: The node that has the control plane.
        cgroup_root: The existing cgroup that pods go below, as a path from the hierarchy's root.
        cgroup_version: 1 or 2.
    """
    certificate = f"kubelet-{node.name}"
    pki.certificate(
        state.pki, certificate, common_name=f"system:node:{node.name}", organization="system:nodes"
    )
    write_kubeconfig(state, certificate, first)
    state.conf.joinpath("containerd.toml").write_text(containerd_config())
    cni = state.conf / "cni"
    cni.mkdir()
    cni.joinpath("10-penstock.conflist").write_text(json.dumps(cni_config(node), indent=1))
    cni_binaries = COMPONENTS["cni"].folder
    with state.conf.joinpath("containerd.toml").open("a") as file:
        file.write(
            "[plugins.'io.containerd.cri.v1.runtime'.cni]\n"
            f"  bin_dirs = ['{cni_binaries}']\n  conf_dir = '{cni}'\n"
        )
    kubelet_file = state.conf / "kubelet.json"
    kubelet_file.write_text(
        json.dumps(
            kubelet_config(state, node, cgroup_root=cgroup_root, cgroup_version=cgroup_version), indent=1
        )
    )
    state.conf.joinpath("kube-proxy.json").write_text(json.dumps(proxy_config(state, node), indent=1))


def containerd_config() -> str:
    """Return containerd's configuration but for the CNI paths: overlayfs, runc with seccomp, cgroupfs."""
    disabled = [
        *(
            f"io.containerd.snapshotter.v1.{name}"
            for name in ("btrfs", "zfs", "devmapper", "blockfile", "erofs")
        ),
        "io.containerd.differ.v1.erofs",
        "io.containerd.nri.v1.nri",
        "io.containerd.tracing.processor.v1.otlp",
    ]
    return f"""version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = '{CONTAINERD_SOCKET}'
[plugins.'io.containerd.internal.v1.opt']
  path = '/var/lib/containerd/opt'
[plugins.'io.containerd.image-verifier.v1.bindir']
  bin_dir = '/var/lib/containerd/{VERIFIERS}'
  per_verifier_timeout = '60s'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{PAUSE_IMAGE}'
[plugins.'io.containerd.cri.v1.runtime']
  # Not every root may lower an OOM score (CAP_SYS_RESOURCE); without it, every container would fail.
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '{program("runc", "runc")}'
  SystemdCgroup = false
"""


def cni_config(node: Node) -> dict[str, Any]:
    """Return the network of the node's pods: a bridge with hairpin, addresses from the node's own range."""
    return {
        "cniVersion": "1.0.0",
        "name": "penstock",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni/addresses",
                    "ranges": [[{"subnet": node.pod_network}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet_config(state: State, node: Node, *, cgroup_root: str, cgroup_version: int) -> dict[str, Any]:
    """Return the KubeletConfiguration.

    Args:
        state: The cluster.
        node: The node.
        cgroup_root: The existing cgroup that pods go below.
        cgroup_version: 1 or 2; on 1 the kubelet needs a flag to accept it.
    """
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{state.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": DOMAIN,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # A pod asks only the cluster's DNS: it cannot reach another.
        "resolvConf": "",
        "podLogsDir": "/var/log/pods",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # Images were loaded, not pulled: one that is collected does not come back.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "64Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
    }
    if cgroup_version == 1:
        config["failCgroupV1"] = False
    if node.name != FIRST.name:
        config["registerWithTaints"] = [{"key": LOADING_TAINT, "effect": "NoSchedule"}]
    return config


def proxy_config(state: State, node: Node) -> dict[str, Any]:
    """Return the KubeProxyConfiguration: nftables, and no hands on the machine's conntrack limits."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": node.name,
        "bindAddress": node.address,
        "clusterCIDR": POD_NETWORK,
        "clientConnection": {"kubeconfig": f"{state.conf}/proxy.kubeconfig"},
        "metricsBindAddress": "127.0.0.1:10249",
        "healthzBindAddress": "127.0.0.1:10256",
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
    }


def containerd(state: State) -> list[str]:
    """Return containerd's command."""
    return [str(program("containerd", "containerd")), "--config", f"{state.conf}/containerd.toml"]


def kubelet(state: State, node: Node) -> list[str]:
    """Return the kubelet's command."""
    return [
        str(program("kubernetes", "kubelet")),
        f"--config={state.conf}/kubelet.json",
        f"--kubeconfig={state.conf}/kubelet-{node.name}.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]


def kube_proxy(state: State) -> list[str]:
    """Return kube-proxy's command."""
    return [str(program("kubernetes", "kube-proxy")), f"--config={state.conf}/kube-proxy.json"]


def ctr(address: str = CONTAINERD_SOCKET) -> list[str]:
    """Return the start of a command of containerd's client, on the images that the kubelet sees.

    Args:
        address: The path of containerd's socket.
    """
    return [str(program("containerd", "ctr")), "--address", address, "--namespace", "k8s.io"]
