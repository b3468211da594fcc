"""Images as files: what is hashed, what is sent, what is dropped."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from devcluster import images, ocistore
from devcluster.errors import DevclusterError
from devcluster.paths import REPOSITORY


def _read(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member))}


def _put(layout: Path, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    layout.joinpath("blobs/sha256", digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data), "mediaType": "x"}


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """Two images that share a layer."""
    root = tmp_path / "layout"
    root.joinpath("blobs/sha256").mkdir(parents=True)
    shared = _put(root, b"base")
    entries = []
    for name in ("one", "two"):
        manifest = {"layers": [shared, _put(root, name.encode())], "config": _put(root, f"c-{name}".encode())}
        annotations = {"org.opencontainers.image.ref.name": name}
        entries.append({**_put(root, json.dumps(manifest).encode()), "annotations": annotations})
    root.joinpath("index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    return root


def test_an_archive_holds_each_blob_once(layout: Path) -> None:
    """Two images that share a layer are four own blobs, two manifests and the layer, all with their name."""
    into = io.BytesIO()
    ocistore.write_archive(layout, {"localhost/a:1": "one", "localhost/b:1": "two"}, (), into)
    files = _read(into.getvalue())
    blobs = {name: data for name, data in files.items() if name.startswith("blobs/")}
    assert len(blobs) == 7
    assert all(name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}" for name, data in blobs.items())
    names = [
        manifest["annotations"]["io.containerd.image.name"]
        for manifest in json.loads(files["index.json"])["manifests"]
    ]
    assert names == ["localhost/a:1", "localhost/b:1"]


def test_what_the_receiver_has_is_not_sent(layout: Path) -> None:
    """A shared layer that is there already is left out, and counts nothing."""
    present = f"sha256:{hashlib.sha256(b'base').hexdigest()}"
    whole, less = io.BytesIO(), io.BytesIO()
    all_bytes = ocistore.write_archive(layout, {"a": "one"}, (), whole)
    few_bytes = ocistore.write_archive(layout, {"a": "one"}, {present}, less)
    assert all_bytes - few_bytes == len(b"base")
    assert _read(whole.getvalue()).keys() - _read(less.getvalue()).keys() == {
        f"blobs/sha256/{present.removeprefix('sha256:')}"
    }


def test_prune_keeps_what_is_used(layout: Path) -> None:
    """The dropped image's own blobs go; the shared layer stays with the other."""
    ocistore.prune(layout, {"two"})
    assert ocistore.manifests(layout).keys() == {"two"}
    ocistore.write_archive(layout, {"b": "two"}, (), io.BytesIO())
    assert len(list(layout.joinpath("blobs/sha256").iterdir())) == 4


def test_the_pause_image_is_reproducible(tmp_path: Path) -> None:
    """One layer with one program, run as nobody; the same bytes each time."""
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    archive = ocistore.program_archive(program, "localhost/pause:1")
    assert archive == ocistore.program_archive(program, "localhost/pause:1")
    files = _read(archive)
    manifest_digest = json.loads(files["index.json"])["manifests"][0]["digest"]
    manifest = json.loads(files[f"blobs/sha256/{manifest_digest[7:]}"])
    config = json.loads(files[f"blobs/sha256/{manifest['config']['digest'][7:]}"])
    assert config["config"] == {"Entrypoint": ["/pause"], "User": "65535:65535"}
    assert _read(files[f"blobs/sha256/{manifest['layers'][0]['digest'][7:]}"]) == {"pause": b"\x7fELF"}


def test_the_key_follows_what_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, its name, its mode and build arguments count; what tools leave behind does not."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    context = tmp_path / "context"
    package = context / "pkg"
    package.joinpath("__pycache__").mkdir(parents=True)
    dockerfile, code = context / "Dockerfile", package / "a.py"
    dockerfile.write_text("FROM x")
    code.write_text("1")

    def key(target: str | None = None, **build_args: str) -> str:
        return images.content_key(dockerfile, context, ("pkg",), target, build_args)

    keys = [key(), key("t"), key(BASE="a"), key(BASE="b")]
    package.joinpath("__pycache__/a.pyc").write_text("x")
    context.joinpath("elsewhere").write_text("x")
    assert key() == keys[0]
    code.write_text("2")
    keys.append(key())
    code.chmod(0o755)
    keys.append(key())
    code.rename(package / "b.py")
    keys.append(key())
    dockerfile.write_text("FROM y")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_an_image_of_ours_as_base_counts_by_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the base was built anew, what stands on it is built anew too."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    known = tmp_path / "cache/images/built.json"
    known.parent.mkdir(parents=True)
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM x")
    keys = set()
    for base_key in ("k1", "k2"):
        known.write_text(json.dumps({"localhost/base:dev": base_key}))
        keys.add(images.content_key(dockerfile, tmp_path, (), None, {"BASE": "localhost/base:dev"}))
    assert len(keys) == 2


def test_dockerignore_lets_through_what_is_hashed() -> None:
    """An input that is copied and not hashed would leave a stale image in the cluster."""
    lines = REPOSITORY.joinpath(".dockerignore").read_text().splitlines()
    assert [line.removeprefix("!") for line in lines if line.startswith("!")] == list(images.OWN_INPUTS)
    assert "*" in lines


def test_the_dockerfile_has_every_target() -> None:
    """Each ends as a user by number, so that `runAsNonRoot` can be checked."""
    text = REPOSITORY.joinpath("Dockerfile").read_text()
    for target in (*images.TARGETS, *images.FORMATS):
        stage, arguments = images.stage(target)
        assert f"FROM runtime AS {stage}\n" in text
        assert all(f"\nARG {name}\n" in text for name in arguments)
    assert "\nUSER 65532:65532\n" in text


def test_references_are_distinct() -> None:
    """Names that look alike to the layout stay distinct, and none has a character that it refuses."""
    names = ["localhost/a/b:dev", "localhost/a-b:dev", "localhost/a/b-dev"]
    references = {images.reference(name) for name in names}
    assert len(references) == 3
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") for name in references)


def test_a_base_of_ours_must_be_built_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what builds it; buildah's would be about a registry that is not there."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(images.machine, "ensure_packages", lambda *_: None)
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("ARG BASE\nFROM ${BASE}\n")
    base = images.image_name("python-model")
    with pytest.raises(DevclusterError, match=f"^{base} is not built; `python -m devcluster images`"):
        images.build(dockerfile=dockerfile, tag="localhost/x:1", build_args={"BASE": base})


def test_a_store_that_has_grown_is_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit; what is built goes into the new one, for nodes and for the images on top of it."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    root = tmp_path / "images"
    for layer in range(3):
        root.joinpath(f"storage/overlay/{layer}").mkdir(parents=True)
    root.joinpath("built.json").write_text('{"localhost/x:1": "k"}')
    monkeypatch.setattr(images, "_STORE_LAYERS", 3)
    images._limit_store()
    assert root.joinpath("storage").exists()
    monkeypatch.setattr(images, "_STORE_LAYERS", 2)
    copied: list[tuple[str | Path, ...]] = []
    monkeypatch.setattr(images, "_tool", lambda *words: copied.append(words))
    images._limit_store()
    assert not root.joinpath("storage").exists()
    assert images.built() == {"localhost/x:1": "k"}
    assert [words[-1] for words in copied] == ["containers-storage:localhost/x:1"]
