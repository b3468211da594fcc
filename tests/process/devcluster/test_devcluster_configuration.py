"""The components' configuration: the settings that make a cluster on one machine possible at all."""

import base64
import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from devcluster import controlplane, network, node, nodes
from devcluster.errors import DevclusterError
from devcluster.paths import State, cache_dir, state_root

_NODE = network.node(0)


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(name="unit", root=tmp_path / "unit")
    for folder in (state.root, state.conf, state.logs):
        folder.mkdir()
    return state


@pytest.fixture
def written(state: State) -> State:
    controlplane.write_pki(state, _NODE)
    node.write_configuration(state, _NODE, first=_NODE, cgroup_root="/penstock-unit/node0", cgroup_version=1)
    return state


def _openssl(*arguments: str | Path) -> str:
    return subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=True
    ).stdout


def test_every_client_is_signed_and_named(written: State) -> None:
    """The user and group that Kubernetes' own roles are bound to, and the right authority."""
    pki = written.pki
    wanted = {
        "kubelet-node0": "O = system:nodes, CN = system:node:node0",
        "controller-manager": "CN = system:kube-controller-manager",
        "scheduler": "CN = system:kube-scheduler",
        "proxy": "CN = system:kube-proxy",
        "coredns": "CN = system:coredns",
        "admin": "O = system:masters, CN = penstock-admin",
    }
    for name, subject in wanted.items():
        certificate = pki / f"{name}.crt"
        assert _openssl("x509", "-noout", "-subject", "-in", certificate).strip() == f"subject={subject}"
        assert _openssl("verify", "-purpose", "sslclient", "-CAfile", pki / "ca.crt", certificate)
    assert _openssl("verify", "-CAfile", pki / "front-proxy-ca.crt", pki / "front-proxy.crt")
    assert pki.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "10.96.0.1", _NODE.address])
def test_the_api_server_is_known_by_every_way_to_it(written: State, address: str) -> None:
    """By the forwarder on loopback, by its Service, by the node."""
    certificate = written.pki / "apiserver.crt"
    checked = _openssl("verify", "-CAfile", written.pki / "ca.crt", "-verify_ip", address, certificate)
    assert checked.strip().endswith("OK")
    named = ("-verify_hostname", "kubernetes.default.svc")
    assert _openssl("verify", "-CAfile", written.pki / "ca.crt", *named, certificate)


def test_kubeconfigs_carry_their_certificates(written: State) -> None:
    """They work when copied, and only their owner reads them."""
    path = written.conf / "scheduler.kubeconfig"
    config = json.loads(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == f"https://{_NODE.address}:6443"
    data = base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
    assert data == written.pki.joinpath("scheduler.crt").read_bytes()
    assert path.stat().st_mode & 0o077 == 0


def test_kubelet_on_both_cgroup_versions(state: State) -> None:
    """On v1 it needs a flag to accept it; on v2 it does not get one."""
    first, two = (
        node.kubelet_config(state, _NODE, cgroup_root="/penstock-unit/node0", cgroup_version=version)
        for version in (1, 2)
    )
    assert first.pop("failCgroupV1") is False
    assert first == two
    assert two["cgroupRoot"] == "/penstock-unit/node0"
    assert two["cgroupDriver"] == "cgroupfs"
    assert two["resolvConf"] == ""
    assert two["clusterDNS"] == [network.DNS_ADDRESS]


def test_containerd_is_told_where_its_parts_are(written: State) -> None:
    """The file is TOML with the settings that avoid the traps: OOM scores, cgroupfs, our pause image."""
    config = tomllib.loads(written.conf.joinpath("containerd.toml").read_text())
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert config["version"] == 3
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is False
    assert runtime["cni"]["conf_dir"] == str(written.conf / "cni")
    images = config["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"]["sandbox"] == node.PAUSE_IMAGE


def test_nodes_do_not_share_addresses() -> None:
    """A second node has its own address and pod range, inside the networks of the cluster."""
    first, second = network.node(0), network.node(1)
    assert (first.name, first.address, first.pod_network) == ("node0", "192.168.77.1", "10.244.0.0/24")
    assert (second.name, second.address, second.pod_network) == ("node1", "192.168.77.2", "10.244.1.0/24")


def test_a_further_node_reaches_the_control_plane_of_the_first(state: State) -> None:
    """Its kubelet and kube-proxy ask the first node's API, and pods wait until it has its images."""
    controlplane.write_pki(state, _NODE)
    mine, second = state.of_node("node1"), network.node(1)
    mine.conf.mkdir(parents=True)
    mine.pki.symlink_to(state.pki)
    node.write_configuration(mine, second, first=_NODE, cgroup_root="/penstock-unit/node1", cgroup_version=1)
    config = json.loads(mine.conf.joinpath("kubelet-node1.kubeconfig").read_text())
    assert config["clusters"][0]["cluster"]["server"] == f"https://{_NODE.address}:6443"
    kubelet = json.loads(mine.conf.joinpath("kubelet.json").read_text())
    assert kubelet["address"] == second.address
    assert kubelet["registerWithTaints"] == [{"key": node.LOADING_TAINT, "effect": "NoSchedule"}]
    assert f"via {_NODE.address}" in network.worker_ip_commands(_NODE, second)
    assert f"route replace {second.pod_network} via {second.address}" in network.plug_commands(second, 1)


@pytest.mark.parametrize("name", ["node0", "node10", "node", "nodeX", "../node1", ""])
def test_what_is_no_further_node(name: str) -> None:
    """The name becomes a folder, a cgroup and an address."""
    with pytest.raises(DevclusterError, match="a further node is called node1 to node9"):
        nodes.parse(name)


def test_dns_leads_to_the_node(state: State) -> None:
    """CoreDNS listens where the EndpointSlice of its selectorless Service points."""
    objects = {obj["kind"]: obj for _, obj in controlplane.bootstrap_objects(_NODE)}
    assert objects["Service"]["spec"]["clusterIP"] == network.DNS_ADDRESS
    assert "selector" not in objects["Service"]["spec"]
    endpoints = objects["EndpointSlice"]["endpoints"]
    assert [endpoint["addresses"] for endpoint in endpoints] == [[_NODE.address]]
    assert f"bind {_NODE.address}" in controlplane.corefile(state, _NODE)


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "-a", "a-", "a" * 33, "a_b"])
def test_names_that_are_no_names(name: str) -> None:
    """A name becomes a folder and a cgroup: nothing but a DNS label passes."""
    with pytest.raises(DevclusterError, match="a cluster's name is a DNS label"):
        State.of(name)


def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Our own variable first, then XDG's, then the home folder."""
    for variable in ("PENSTOCK_CACHE", "PENSTOCK_STATE", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (cache_dir(), state_root()) == (tmp_path / ".cache/penstock", tmp_path / ".local/state/penstock")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("PENSTOCK_STATE", "/s")
    assert (cache_dir(), state_root()) == (Path("/x/penstock"), Path("/s"))
