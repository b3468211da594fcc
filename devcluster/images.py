"""Images without an engine: Debian's buildah, on a base made by debootstrap where no registry is reached.

Built images lie in one OCI layout in the cache, so that the layers they share are there once. What an
image is made from is hashed; one whose hash is known is not built again.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from devcluster import machine, ocistore
from devcluster.cache import cached, digest, locked
from devcluster.console import say, step
from devcluster.errors import DevclusterError
from devcluster.paths import REPOSITORY, cache_dir
from devcluster.processes import run_tethered, write_atomically

TARGETS = ("operator", "router", "sidecar", "python-model")
FORMATS = (
    *("huggingface-model", "lightgbm-model", "mlflow-model", "onnx-model", "sklearn-model", "xgboost-model"),
)
"""Images that serve the files of a format; a cluster is given those that are asked for."""
BASE_IMAGE = "localhost/python:3.13-slim"
BASE_SUITE = "trixie"
# With `python` and `pip`, as a Dockerfile that begins `FROM python:3.13-slim` expects them.
_BASE_PACKAGES = ("ca-certificates", "python-is-python3", "python3", "python3-pip", "python3-venv")
# Debian's mark that pip shall leave the system's Python alone; in an image it is the image's own.
_BASE_EXTERNALLY_MANAGED = "usr/lib/python3*/EXTERNALLY-MANAGED"
_BASE_DOCKERFILE = """FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python3"]
"""
# Files that none of our images reads; a later call of dpkg does not need them.
_BASE_UNUSED = (
    *("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian"),
    *("var/cache/apt", "var/cache/debconf", "var/lib/apt/lists", "var/log"),
)
# What the repository's own Dockerfile copies; .dockerignore lets exactly this through.
OWN_INPUTS = (
    *("pyproject.toml", "README.md", "LICENSE", "requirements", "compile_modules.py", "hatch_build.py"),
    *("cli", "operator", "router", "sdk", "sidecar", "wire"),
)
_IGNORED_PARTS = {"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
_STORE_LAYERS = 800  # some 15 GB, after a hundred changes of code
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def image_name(target: str) -> str:
    """Return the name of one of the Dockerfile's images."""
    return f"localhost/penstock/{target}:dev"


def stage(target: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the Dockerfile's stage and the build arguments of one of its images.

    Args:
        target: Of `TARGETS` or `FORMATS`; any other is a stage itself.
    """
    if target in FORMATS:
        return "format-model", {"FORMAT": target.removesuffix("-model")}
    return target, {}


def _root() -> Path:
    return cache_dir() / "images"


def layout() -> Path:
    """Return the OCI layout that holds all built images."""
    return _root() / "layout"


@contextlib.contextmanager
def store_lock() -> Iterator[None]:
    """Hold the image store: one run builds or reads it at a time."""
    with locked(_root() / "store.lock", waiting="waiting for another run that builds or loads images"):
        yield


def built() -> dict[str, str]:
    """Return the images in the layout: name → hash of what each was made from."""
    try:
        record: dict[str, str] = json.loads(_root().joinpath("built.json").read_text())
    except (OSError, ValueError):
        return {}
    return record


def reference(name: str) -> str:
    """Return what the layout calls the image: only letters, digits, dot and dash, and no two alike."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name) + "-" + digest([name])[:8]


def files(root: Path, names: Sequence[str] = (".",)) -> list[Path]:
    """Return all files below some entries of a folder, sorted, without what tools leave behind.

    Args:
        root: The folder.
        names: Files and folders in it.
    """
    paths: list[Path] = []
    for name in names:
        entry = root / name
        paths.extend([entry] if entry.is_file() else (path for path in entry.rglob("*") if path.is_file()))
    return sorted(path for path in paths if not _IGNORED_PARTS & set(path.relative_to(root).parts))


def content_key(
    dockerfile: Path, context: Path, inputs: Sequence[str], target: str | None, build_args: Mapping[str, str]
) -> str:
    """Hash what an image is made from.

    Args:
        dockerfile: Its Dockerfile.
        context: The folder that COPY reads.
        inputs: What in the folder counts.
        target: The stage; None for the last.
        build_args: Build arguments; the name of one of our images stands for what that image was made from.
    """
    known = built()
    arguments = [f"{key}={value}={known.get(value, '')}" for key, value in sorted(build_args.items())]
    parts: list[str | Path] = [target or "", *arguments, dockerfile]
    for file in files(context, inputs):
        parts += [str(file.relative_to(context)), f"{file.stat().st_mode & 0o111}", file]
    return digest(parts)


def _tool(program: str, *arguments: str | Path) -> None:
    """Run buildah or skopeo on our own store; mounts and processes end with it, however it ends.

    Raises:
        DevclusterError: It failed; the message has the end of its output.
    """
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    for stale in root.glob(".run-*"):  # left by a run that was killed: we hold the store's lock
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".run-") as temporary:
        run = Path(temporary)
        run.joinpath("storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{root}/storage"\nrunroot = "{run}/run"\n'
        )
        run.joinpath("policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        policy = ["--policy" if program == "skopeo" else "--signature-policy", str(run / "policy.json")]
        subcommand, *rest = map(str, arguments)
        command = (
            [program, *policy, subcommand, *rest]
            if program == "skopeo"
            else [program, subcommand, *policy, *rest]
        )
        environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(run / "storage.conf"), "TMPDIR": str(run)}
        process = run_tethered(command, env=environment, cwd=root, output=subprocess.PIPE)
        output, _ = process.communicate()
        if process.returncode:
            raise DevclusterError(f"{program} {subcommand} failed:\n{output.strip()[-4000:]}")


def _make_base(into: Path) -> None:
    rootfs = into / "rootfs"
    mirror = os.environ.get("PENSTOCK_DEBIAN_MIRROR")
    with step(f"making the base image's files: debootstrap {BASE_SUITE} (first time about 2 minutes)"):
        command: list[str | Path] = ["debootstrap", "--variant=minbase"]
        command += [f"--include={','.join(_BASE_PACKAGES)}", BASE_SUITE, rootfs]
        command += [mirror] if mirror else []
        process = run_tethered(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            cwd=into,
            output=subprocess.PIPE,
        )
        output, _ = process.communicate()
        if process.returncode:
            raise DevclusterError(f"debootstrap failed:\n{output.strip()[-2000:]}")
        for mark in rootfs.glob(_BASE_EXTERNALLY_MANAGED):
            mark.unlink()
        for unused in _BASE_UNUSED:
            folder = rootfs / unused
            if folder.is_dir():
                shutil.rmtree(folder)
                folder.mkdir()
        tar: list[str | Path] = [
            "tar",
            "--numeric-owner",
            "--exclude=./dev/*",
            "-C",
            rootfs,
            "-cf",
            into / "rootfs.tar",
            ".",
        ]
        subprocess.run(tar, check=True)
        shutil.rmtree(rootfs)


def ensure_base() -> str:
    """Make the image that stands in for `python:3.13-slim` when no registry can be reached.

    Returns:
        Its name.

    Raises:
        DevclusterError: debootstrap or buildah failed.
    """
    machine.ensure_packages(machine.IMAGE_NEEDS)
    recipe = [BASE_SUITE, *_BASE_PACKAGES, *_BASE_UNUSED, _BASE_EXTERNALLY_MANAGED, _BASE_DOCKERFILE]
    recipe.append(os.uname().machine)
    key = digest(recipe)
    with store_lock():
        _limit_store()
        if built().get(BASE_IMAGE) == key:
            return BASE_IMAGE
        folder = cached(_root(), "base", key, _make_base)
        with step(f"importing {BASE_IMAGE}"), tempfile.TemporaryDirectory(dir=_root()) as temporary:
            dockerfile = Path(temporary) / "Dockerfile"
            dockerfile.write_text(_BASE_DOCKERFILE)
            _tool("buildah", "build", "--format", "oci", "--tag", BASE_IMAGE, "--file", dockerfile, folder)
            _store(BASE_IMAGE, key)
    return BASE_IMAGE


def _limit_store() -> None:
    """Start the store anew when it has grown: buildah cannot determine which old layers are still in use.

    The images that are built stay: clusters give them to nodes that are added later, and other images are
    built on them.
    """
    storage = _root() / "storage"
    layers = storage / "overlay"
    if layers.is_dir() and sum(1 for _ in layers.iterdir()) > _STORE_LAYERS:
        say(f"the image store in {storage} has over {_STORE_LAYERS} layers: starting it anew")
        shutil.rmtree(storage)
        for name in built():
            _tool("skopeo", "copy", f"oci:{layout()}:{reference(name)}", f"containers-storage:{name}")


def _store(name: str, key: str) -> None:
    """Write the image to the layout, note its hash, drop what no image uses any more."""
    # skopeo and not `buildah push`: it leaves layers uncompressed and skips those that are in the layout.
    source, into = f"containers-storage:{name}", f"oci:{layout()}:{reference(name)}"
    _tool("skopeo", "copy", "--dest-oci-accept-uncompressed-layers", source, into)
    known = {**built(), name: key}
    write_atomically(_root() / "built.json", json.dumps(known, indent=1))
    ocistore.prune(layout(), {reference(name) for name in known})


def build(
    *,
    dockerfile: Path,
    tag: str,
    target: str | None = None,
    context: Path | None = None,
    build_args: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> bool:
    """Build one image when what it is made from has changed.

    Args:
        dockerfile: Its Dockerfile.
        tag: Its name.
        target: The stage; None for the last.
        context: The folder that COPY reads; None for the Dockerfile's.
        build_args: Build arguments. Without `BASE` the repository's own Dockerfile gets the base that
            stands in for `python:3.13-slim`.
        options: More options of `buildah build`.

    Returns:
        Whether it was built; False when it was there.

    Raises:
        DevclusterError: buildah failed.
    """
    dockerfile = dockerfile.absolute()
    if not dockerfile.is_file():
        raise DevclusterError(f"{dockerfile} does not exist")
    machine.ensure_packages(machine.IMAGE_NEEDS)
    folder = (context or dockerfile.parent).absolute()
    own = dockerfile == REPOSITORY / "Dockerfile"
    arguments = dict(build_args or {})
    if own and "BASE" not in arguments:
        arguments["BASE"] = ensure_base()
    if own and os.environ.get("PENSTOCK_COMPILE"):
        arguments.setdefault("COMPILE", os.environ["PENSTOCK_COMPILE"])
    with store_lock():
        for argument, value in arguments.items():
            if argument == "BASE" and value.startswith("localhost/penstock/") and value not in built():
                raise DevclusterError(
                    f"{value} is not built; `python -m devcluster images` builds this repository's images"
                )
        key = content_key(dockerfile, folder, OWN_INPUTS if own else (".",), target, arguments)
        key = digest([key, *options]) if options else key
        if built().get(tag) == key:
            return False
        command: list[str | Path] = ["build", "--isolation", "chroot", "--network", "host", "--pull=never"]
        command += ["--format", "oci", "--layers"]
        if _CA_BUNDLE.is_file():  # a machine behind a proxy may have an authority of its own
            command += ["--volume", f"{_CA_BUNDLE}:{_CA_BUNDLE}:ro"]
        for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            if os.environ.get(variable):
                command += ["--build-arg", f"{variable}={os.environ[variable]}"]
        command += ["--target", target] if target else []
        command += options
        for argument, value in arguments.items():
            command += ["--build-arg", f"{argument}={value}"]
        with step(f"building {tag}"):
            _tool("buildah", *command, "--tag", tag, "--file", dockerfile, folder)
            _store(tag, key)
    return True


def build_targets(targets: Sequence[str] = TARGETS) -> list[str]:
    """Build targets of the repository's Dockerfile; return the images' names.

    Args:
        targets: Of `TARGETS` and `FORMATS`.
    """
    names = []
    for target in targets:
        name, arguments = stage(target)
        build(
            dockerfile=REPOSITORY / "Dockerfile",
            tag=image_name(target),
            target=name,
            build_args=arguments,
        )
        names.append(image_name(target))
    return names


def copy(source: str, destination: str, *options: str) -> str:
    """Copy an image with skopeo.

    Args:
        source: As skopeo names it, such as `oci:FOLDER:NAME`.
        destination: Likewise.
        options: More options of `skopeo copy`.

    Returns:
        The digest of the manifest that lies there.

    Raises:
        DevclusterError: skopeo failed.
    """
    machine.ensure_packages(machine.IMAGE_NEEDS)
    with store_lock(), tempfile.NamedTemporaryFile("r") as digest_file:
        _tool("skopeo", "copy", f"--digestfile={digest_file.name}", *options, source, destination)
        return digest_file.read().strip()


def export(tag: str, into: Path, name: str) -> str:
    """Copy a built image to another OCI layout, compressed.

    Args:
        tag: Its name.
        into: The folder of the layout.
        name: What the layout calls it.

    Returns:
        The digest of its manifest.
    """
    return copy(f"oci:{layout()}:{reference(tag)}", f"oci:{into}:{name}")
