"""The machine's requirements: one sentence for each that is missing, and the installation of packages."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from devcluster.console import step
from devcluster.errors import DevclusterError, UnsupportedMachineError

GO_NEEDED = (1, 26)
_GO_DEFAULT = Path("/usr/local/go/bin/go")
# What is looked for, and the Debian package that has it. A path is looked for as a path, a name on PATH.
CLUSTER_NEEDS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "nft": "nftables",
    "openssl": "openssl",
}
BUILD_NEEDS = {
    "gcc": "gcc",
    "pkg-config": "pkg-config",
    "/usr/include/stdio.h": "libc6-dev",
    "/usr/include/seccomp.h": "libseccomp-dev",
}
IMAGE_NEEDS = {"buildah": "buildah", "debootstrap": "debootstrap", "skopeo": "skopeo"}


def require_runnable() -> None:
    """Check what no package can mend: the system, the user and its namespaces.

    Raises:
        UnsupportedMachineError: A cluster cannot run here; the message says why.
    """
    if sys.platform != "linux":
        raise UnsupportedMachineError(f"a cluster needs Linux; this is {platform.system()}")
    if os.geteuid() != 0:
        raise UnsupportedMachineError(
            "a cluster needs root, for namespaces, mounts and cgroups; run it as root (sudo)"
        )
    if not shutil.which("unshare"):
        raise UnsupportedMachineError("a cluster needs `unshare` (package util-linux), which is not here")
    tried = subprocess.run(
        ["unshare", "-n", "-m", "-p", "-f", "--mount-proc", "--kill-child", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        raise UnsupportedMachineError(
            "a cluster needs network, mount and process namespaces, which this machine refuses: "
            + (tried.stderr.strip() or f"unshare exited {tried.returncode}")
        )


def _missing(needs: Mapping[str, str]) -> list[str]:
    def there(what: str) -> bool:
        return Path(what).exists() if what.startswith("/") else shutil.which(what) is not None

    return sorted({package for what, package in needs.items() if not there(what)})


def ensure_packages(*needs: Mapping[str, str]) -> None:
    """Install the Debian packages that are missing, and say so.

    Args:
        needs: Tables of what is looked for → the package that has it.

    Raises:
        UnsupportedMachineError: A requirement is missing, and so is apt-get.
        DevclusterError: apt-get failed.
    """
    packages = sorted({package for table in needs for package in _missing(table)})
    if not packages:
        return
    names = " ".join(packages)
    if not shutil.which("apt-get"):
        raise UnsupportedMachineError(
            f"missing: {names} (Debian's names); this machine does not have apt-get, so install them by hand"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    waits = ("-o", "DPkg::Lock::Timeout=300")  # another may install something
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *waits, *packages]
    with step(f"installing Debian packages: {names}"):
        first = subprocess.run(install, capture_output=True, text=True, check=False, env=environment)
        if first.returncode:  # most often: no package lists yet; or an installation was killed
            for command in (["dpkg", "--configure", "-a"], ["apt-get", "update", "-qq"], install):
                last = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if last.returncode:
                raise DevclusterError(f"apt-get could not install {names}:\n{last.stderr.strip()[-2000:]}")
    still = sorted({package for table in needs for package in _missing(table)})
    if still:
        raise DevclusterError(f"apt-get installed {' '.join(still)}, but what they should bring is not here")


def parse_go_version(text: str) -> tuple[int, int] | None:
    """Return major and minor of `go version`'s answer; None when it is something else."""
    match = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def require_go() -> Path:
    """Return the Go toolchain's program.

    Raises:
        UnsupportedMachineError: There is none, or it is too old.
    """
    wanted = ".".join(map(str, GO_NEEDED))
    path = shutil.which("go") or (str(_GO_DEFAULT) if _GO_DEFAULT.exists() else None)
    if not path:
        raise UnsupportedMachineError(
            f"the cluster's programs are built from source with Go {wanted} or newer, and this machine "
            f"does not have `go` on PATH or in {_GO_DEFAULT.parent}"
        )
    answer = subprocess.run(
        [path, "version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GOTOOLCHAIN": "local"},
    ).stdout
    version = parse_go_version(answer)
    if version is None or version < GO_NEEDED:
        raise UnsupportedMachineError(
            f"the cluster's programs need Go {wanted} or newer; {path} says {answer.strip() or 'nothing'!r}"
        )
    return Path(path)


def load_kernel_modules(modules: Sequence[str] = ("overlay", "br_netfilter", "veth", "nf_tables")) -> None:
    """Load what a kernel may have as modules; one that has them built in needs nothing.

    Failures are not errors: what is really missing shows when it is used.

    Args:
        modules: Names for modprobe.
    """
    modprobe = shutil.which("modprobe")
    if modprobe:
        subprocess.run([modprobe, "--all", "--quiet", *modules], capture_output=True, check=False)
