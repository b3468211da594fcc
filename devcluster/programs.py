"""The cluster's programs, built from Go modules that are pinned in `go/<component>/go.mod` and `go.sum`.

Each component is one of our Go modules, with `tool` lines: `go install tool` builds exactly what its `go.sum`
pins, which `go install package@version` would refuse for modules with replace directives.
"""

import dataclasses
import inspect
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from devcluster import machine, reduced_keda
from devcluster.cache import cached, digest
from devcluster.console import step
from devcluster.errors import DevclusterError
from devcluster.paths import cache_dir
from devcluster.processes import run_tethered

PINS = Path(__file__).resolve().parent / "go"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One of our Go modules, and the programs that are built from it.

    Attributes:
        name: The folder in `go/`.
        module: The module whose version is the component's version.
        binaries: File names in the finished folder → what the build calls them.
        about: How long the first build takes on two cores, for people.
        cgo: Whether C code is linked.
        tags: Build tags.
        stamp: Linker variables that get the version.
        copies: Files and folders of the module that are put beside the programs: name there → path in it.
        reduce: Copies the module, from its folder into an empty one, with less in it. There it is built by
            its own go.mod and go.sum, which the sum of the whole module pins. None: built as it is.
        extra: Not part of a cluster: built only when `ensure` is asked for it.
    """

    name: str
    module: str
    binaries: Mapping[str, str]
    about: str
    cgo: bool = False
    tags: str = ""
    stamp: tuple[str, ...] = ()
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reduce: Callable[[Path, Path], None] | None = None
    extra: bool = False

    @property
    def pins(self) -> tuple[Path, Path]:
        """The two checked-in files that say what is built."""
        return PINS / self.name / "go.mod", PINS / self.name / "go.sum"

    @property
    def version(self) -> str:
        """The pinned version, such as `v3.6.16`."""
        match = re.search(
            rf"^(?:require )?\s*{re.escape(self.module)} (v\S+)", self.pins[0].read_text(), re.MULTILINE
        )
        if not match:
            raise DevclusterError(f"{self.pins[0]} does not require {self.module}")
        return match[1]

    @property
    def key(self) -> str:
        """Hash of all that decides what comes out."""
        recipe = f"{self.cgo} {self.tags} {self.stamp} {sorted(self.binaries.items())} {os.uname().machine}"
        recipe += f" {sorted(self.copies.items())}" if self.copies else ""
        parts: list[str | Path] = [*self.pins, *sorted(self.pins[0].parent.rglob("*.go")), recipe]
        if self.reduce:
            parts.append(Path(inspect.getfile(self.reduce)))
        return digest(parts)

    @property
    def folder(self) -> Path:
        """The folder of the finished programs; it exists once they are built."""
        return cache_dir() / "programs" / f"{self.name}-{self.key}"


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_KUBERNETES_STAMPS = ("k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion")
COMPONENTS = {
    component.name: component
    for component in (
        Component(
            name="kubernetes",
            module="k8s.io/kubernetes",
            binaries=_same(
                "kube-apiserver",
                "kube-controller-manager",
                "kube-proxy",
                "kube-scheduler",
                "kubectl",
                "kubelet",
            ),
            about="5 minutes",
            stamp=_KUBERNETES_STAMPS,
        ),
        Component(
            name="etcd",
            module="go.etcd.io/etcd/server/v3",
            binaries={"etcd": "server"},
            about="half a minute",
        ),
        Component(
            name="containerd",
            module="github.com/containerd/containerd/v2",
            binaries=_same("containerd", "containerd-shim-runc-v2", "ctr"),
            about="1 minute",
        ),
        # Without the seccomp tag, pods with seccomp profile RuntimeDefault fail.
        Component(
            name="runc",
            module="github.com/opencontainers/runc",
            binaries=_same("runc"),
            about="15 seconds",
            cgo=True,
            tags="seccomp",
        ),
        Component(
            name="cni",
            module="github.com/containernetworking/plugins",
            binaries=_same("bridge", "host-local", "loopback", "portmap"),
            about="10 seconds",
        ),
        # Our program around its module, with the plugins that a cluster's Corefile names.
        Component(
            name="coredns",
            module="github.com/coredns/coredns",
            binaries=_same("coredns"),
            about="half a minute",
        ),
        Component(name="helm", module="helm.sh/helm/v4", binaries=_same("helm"), about="90 seconds"),
        # Nodes and pods that exist in the API alone, for measuring with thousands of them. Without the
        # stages it does nothing at all.
        Component(
            name="kwok",
            module="sigs.k8s.io/kwok",
            binaries=_same("kwok"),
            about="100 seconds",
            copies={
                "node-initialize.yaml": "kustomize/stage/node/fast/node-initialize.yaml",
                "node-heartbeat.yaml": (
                    "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml"
                ),
                **{
                    f"pod-{stage}.yaml": f"kustomize/stage/pod/fast/pod-{stage}.yaml"
                    for stage in ("ready", "complete", "delete")
                },
            },
            extra=True,
        ),
        # Checks alerting rules and queries.
        Component(
            name="prometheus",
            module="github.com/prometheus/prometheus",
            binaries=_same("promtool"),
            about="2 minutes",
            tags="remove_all_sd,enable_kubernetes_sd",
            extra=True,
        ),
        # Other projects' sidecars, to measure beside ours.
        Component(
            name="kserve-agent",
            module="github.com/kserve/kserve",
            binaries=_same("agent"),
            about="5 minutes",
            extra=True,
        ),
        Component(
            name="queue-proxy",
            module="knative.dev/serving",
            binaries=_same("queue"),
            about="2 minutes",
            extra=True,
        ),
        # Our programs around other projects' autoscalers, to simulate them beside ours.
        Component(
            name="knative-autoscaler",
            module="knative.dev/serving",
            binaries=_same("knative-autoscaler"),
            about="1 minute",
            extra=True,
        ),
        Component(
            name="hpa",
            module="k8s.io/kubernetes",
            binaries=_same("hpa"),
            about="3 minutes",
            extra=True,
        ),
        # Another project's scaler, to run beside our operator. `config` has its manifests.
        Component(
            name="keda",
            module="github.com/kedacore/keda/v2",
            binaries={"keda": "operator", "keda-adapter": "adapter"},
            about="5 minutes",
            stamp=("github.com/kedacore/keda/v2/version.Version",),
            copies={"config": "config"},
            reduce=reduced_keda.reduce,
            extra=True,
        ),
        # The metrics API, by which Kubernetes' own autoscaler sees the CPU of pods.
        Component(
            name="metrics-server",
            module="sigs.k8s.io/metrics-server",
            binaries=_same("metrics-server"),
            about="1 minute",
            copies={"config": "manifests/base"},
            extra=True,
        ),
        # What makes a release: bills of material, signatures.
        Component(
            name="syft",
            module="github.com/anchore/syft",
            binaries=_same("syft"),
            about="5 minutes",
            extra=True,
        ),
        Component(
            name="cosign",
            module="github.com/sigstore/cosign/v2",
            binaries=_same("cosign"),
            about="5 minutes",
            extra=True,
        ),
        # Our program around the libraries of Flux, kpt and Argo CD: how they read our statuses.
        Component(
            name="verdict",
            module="github.com/fluxcd/cli-utils",
            binaries=_same("verdict"),
            about="half a minute",
            extra=True,
        ),
    )
}


def program(component: str, binary: str) -> Path:
    """Return the absolute path of a program; it exists after `ensure_all`, or `ensure` of an extra one."""
    return COMPONENTS[component].folder / binary


def missing() -> list[Component]:
    """Return a cluster's components that are not built yet."""
    return [
        component
        for component in COMPONENTS.values()
        if not component.extra and not component.folder.is_dir()
    ]


def ensure_all() -> None:
    """Build what a cluster lacks, one component after the other.

    Raises:
        UnsupportedMachineError: There is something to build and no Go toolchain.
        DevclusterError: A build failed.
    """
    _ensure(missing())
    pause()


def ensure(*names: str) -> None:
    """Build those of the named components that are missing.

    Args:
        names: As in `COMPONENTS`.

    Raises:
        UnsupportedMachineError: There is something to build and no Go toolchain.
        DevclusterError: A build failed.
    """
    _ensure([COMPONENTS[name] for name in names if not COMPONENTS[name].folder.is_dir()])


def _ensure(absent: list[Component]) -> None:
    if absent:
        machine.require_go()
        machine.ensure_packages(machine.BUILD_NEEDS)
    for component in absent:
        cached(
            cache_dir() / "programs",
            component.name,
            component.key,
            lambda into, component=component: build(component, into),  # type: ignore[misc]
        )


def _environment(component: Component, into: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in {"GOFLAGS", "GOBIN", "GOWORK"}}
    return {
        **kept,
        "GOBIN": str(into),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "1" if component.cgo else "0",
    }


def build(component: Component, into: Path) -> None:
    """Build one component's programs.

    Args:
        component: What to build.
        into: An existing folder for the programs.

    Raises:
        DevclusterError: The build failed; the message has the end of its output.
    """
    go = machine.require_go()
    environment = _environment(component, into)
    flags = " ".join(["-s -w", *(f"-X {variable}={component.version}" for variable in component.stamp)])
    command: list[str | Path] = [
        *(go, "build" if component.reduce else "install"),
        *("-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags),
    ]
    command += ["-tags", component.tags] if component.tags else []
    if component.reduce:
        with tempfile.TemporaryDirectory(prefix=f"penstock-{component.name}-") as copy:
            component.reduce(_module(go, component, environment), Path(copy))
            packages = [f"./cmd/{name}" for name in component.binaries.values()]
            _compile(component, [*command, "-o", into, *packages], environment, Path(copy))
    else:
        _compile(component, [*command, "tool"], environment, component.pins[0].parent)
    for name, built in component.binaries.items():
        if name != built:
            into.joinpath(built).rename(into / name)
    if component.copies:
        module = _module(go, component, environment)
        for name, path in component.copies.items():
            if module.joinpath(path).is_dir():
                shutil.copytree(module / path, into / name, copy_function=shutil.copyfile)
            else:
                into.joinpath(name).write_bytes(module.joinpath(path).read_bytes())


def _compile(
    component: Component, command: list[str | Path], environment: Mapping[str, str], folder: Path
) -> None:
    lines: list[str] = []
    what = f"building {component.name} {component.version} ({', '.join(component.binaries)}; first time about"
    with step(f"{what} {component.about})", progress=lambda: f"{len(lines)} packages"):
        with run_tethered(command, env=environment, cwd=folder, output=subprocess.PIPE) as process:
            assert process.stdout is not None  # noqa: S101 - for the type checker
            reader = threading.Thread(target=lines.extend, args=(process.stdout,))
            reader.start()
            code = process.wait()
            reader.join()
        if code:
            output = "".join(lines[-30:])
            if ': Get "http' in output:
                output += (
                    "expected a proxy of Go modules within reach: set GOPROXY, or connect to the network"
                )
            raise DevclusterError(f"building {component.name} failed:\n{output}")


def _module(go: Path, component: Component, environment: Mapping[str, str]) -> Path:
    """Return the folder of a component's module in Go's cache; its sum has been checked on the way there."""
    _ask(go, ["mod", "download", component.module], component, environment)
    found = ["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", component.module]
    return Path(_ask(go, found, component, environment).strip())


def _ask(go: Path, arguments: list[str], component: Component, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [go, *arguments],
        capture_output=True, text=True, check=False, env=environment, cwd=component.pins[0].parent,
    )  # fmt: skip
    if done.returncode:
        raise DevclusterError(f"where is {component.module}? {done.stderr.strip()}")
    return done.stdout


def pause() -> Path:
    """Return the folder of the `pause` program, which holds a pod's namespaces; compile it when missing.

    Raises:
        DevclusterError: The compiler failed.
    """
    source = PINS.parent / "pause.c"

    def make(into: Path) -> None:
        machine.ensure_packages(machine.BUILD_NEEDS)
        compiled = subprocess.run(
            ["gcc", "-Os", "-Wall", "-Werror", "-static", "-s", "-o", into / "pause", source],
            capture_output=True,
            text=True,
            check=False,
        )
        if compiled.returncode:
            raise DevclusterError(f"gcc could not compile {source}:\n{compiled.stderr}")

    return cached(cache_dir() / "programs", "pause", digest([source, os.uname().machine]), make)
