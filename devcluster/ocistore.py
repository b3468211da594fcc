"""Images as files: an OCI layout that all images share, and archives that carry only what is missing.

A layout is a folder of blobs named by their SHA-256, and an index of the manifests in it (OCI image
specification, image-layout.md). A cluster that has a layer already is not sent it again: after a change of
code, an import is kilobytes.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_NAME = "io.containerd.image.name"
_LAYOUT = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _descriptor(kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _blob_name(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def program_archive(program: Path, name: str) -> bytes:
    """Return an OCI archive of an image that holds one static program and runs it as nobody.

    Args:
        program: The program.
        name: The image's name with its tag.

    Returns:
        A tar; the same for the same program and name.
    """
    layer_file = io.BytesIO()
    with tarfile.open(fileobj=layer_file, mode="w") as layer_tar:
        _add(layer_tar, program.name, program.read_bytes(), 0o755)
    layer = layer_file.getvalue()
    layer_descriptor = _descriptor("application/vnd.oci.image.layer.v1.tar", layer)
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
        }
    ).encode()
    config_descriptor = _descriptor("application/vnd.oci.image.config.v1+json", config)
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": config_descriptor,
            "layers": [layer_descriptor],
        }
    ).encode()
    manifest_descriptor = {**_descriptor(_MANIFEST, manifest), "annotations": {_NAME: name}}
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as archive:
        _add(archive, "oci-layout", _LAYOUT)
        _add(
            archive,
            "index.json",
            json.dumps({"schemaVersion": 2, "manifests": [manifest_descriptor]}).encode(),
        )
        blobs = ((layer_descriptor, layer), (config_descriptor, config), (manifest_descriptor, manifest))
        for descriptor, data in blobs:
            _add(archive, _blob_name(descriptor["digest"]), data)
    return result.getvalue()


def manifests(layout: Path) -> dict[str, dict[str, Any]]:
    """Return the layout's images: reference name → descriptor of the manifest."""
    index = json.loads(layout.joinpath("index.json").read_text())
    return {
        entry["annotations"]["org.opencontainers.image.ref.name"]: entry
        for entry in index["manifests"]
        if "org.opencontainers.image.ref.name" in entry.get("annotations", {})
    }


def _blobs(layout: Path, descriptor: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    manifest = json.loads(layout.joinpath(_blob_name(descriptor["digest"])).read_text())
    yield from manifest["layers"]
    yield manifest["config"]
    yield descriptor


def write_archive(layout: Path, images: Mapping[str, str], present: Collection[str], into: IO[bytes]) -> int:
    """Write an OCI archive of some images, without the blobs that the receiver has.

    Args:
        layout: The OCI layout.
        images: Image name as the receiver shall call it → reference name in the layout.
        present: Digests (`sha256:…`) that the receiver has.
        into: Where the tar goes; need not be seekable.

    Returns:
        How many bytes of blobs were written.

    Raises:
        KeyError: The layout does not have that reference.
    """
    known = manifests(layout)
    written: set[str] = set(present)
    total = 0
    with tarfile.open(fileobj=into, mode="w|") as archive:
        _add(archive, "oci-layout", _LAYOUT)
        entries = []
        for name, reference in images.items():
            descriptor = known[reference]
            for blob in _blobs(layout, descriptor):
                if blob["digest"] in written:
                    continue
                written.add(blob["digest"])
                total += blob["size"]
                archive.add(layout / _blob_name(blob["digest"]), _blob_name(blob["digest"]))
            entries.append(
                {
                    "mediaType": descriptor["mediaType"],
                    "digest": descriptor["digest"],
                    "size": descriptor["size"],
                    "annotations": {_NAME: name},
                }
            )
        _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())
    return total


def prune(layout: Path, references: Collection[str]) -> None:
    """Drop what no image of `references` uses: index entries, then blobs.

    Args:
        layout: the OCI layout; no other process writes to it now.
        references: Reference names that stay.
    """
    index_file = layout / "index.json"
    index = json.loads(index_file.read_text())
    kept = {name: entry for name, entry in manifests(layout).items() if name in references}
    index["manifests"] = list(kept.values())
    used = {blob["digest"] for entry in kept.values() for blob in _blobs(layout, entry)}
    index_file.write_text(json.dumps(index))
    for blob in layout.joinpath("blobs/sha256").iterdir():
        if f"sha256:{blob.name}" not in used:
            blob.unlink()
