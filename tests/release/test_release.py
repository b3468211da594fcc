"""A release from this checkout to a registry on this machine: what is built, signed, refused when altered."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tarfile
import urllib.request
import venv
from pathlib import Path

import pytest
import yaml

from devcluster import images as builder
from devcluster import programs
from devcluster.errors import DevclusterError
from release import __main__ as command
from release import bills, chart, images, notes, packages, registry, version
from release.errors import ReleaseError
from release.version import ROOT, check_version
from tests.release.conftest import COMMIT
from tests.support.processes.ports import free_port

TARGET = "python-model"
pytestmark = pytest.mark.timeout(1800)  # the first run builds syft and cosign


def test_two_builds_of_the_packages_are_the_same_bytes(tmp_path: Path) -> None:
    """Whoever builds the commit again can check that a published wheel is what the source says."""
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", copy], check=True)
    first = packages.build_pure(tmp_path / "a", COMMIT.epoch, copy)
    second = packages.build_pure(tmp_path / "b", COMMIT.epoch, copy)
    assert [path.suffix for path in first] == [".whl", ".gz"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_an_sdist_has_all_that_a_wheel_is_built_from(tmp_path: Path) -> None:
    _, sdist = packages.build_pure(tmp_path / "a", COMMIT.epoch)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    again, _ = packages.build_pure(tmp_path / "b", COMMIT.epoch, unpacked)
    assert again.read_bytes() == (tmp_path / "a" / again.name).read_bytes()


def test_the_compiled_wheel_runs_compiled_where_it_is_installed(tmp_path: Path) -> None:
    """On a Python of its own with nothing but the wheel; and again from another folder it is the same."""
    wheel = packages.build_compiled(tmp_path / "a", COMMIT.epoch)
    assert "manylinux" in wheel.name
    assert packages.build_compiled(tmp_path / "b", COMMIT.epoch).read_bytes() == wheel.read_bytes()
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[run]"], check=True)
    script = "from penstock_wire.build import BUILD; import penstock; print(BUILD, penstock.__version__)"
    printed = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["compiled", COMMIT.version]


def test_a_tag_is_not_signed(tmp_path: Path) -> None:
    """It may name something else by the time that somebody pulls it."""
    listed = tmp_path / "pushed.json"
    with pytest.raises(ReleaseError, match=r"pushed\.json: expected what `push` writes, found nothing"):
        registry.read_pushed(listed)
    digest = "ghcr.io/owner/penstock/operator@sha256:" + "0" * 64
    listed.write_text(json.dumps([digest]))
    assert registry.read_pushed(listed) == [digest]
    listed.write_text(json.dumps([digest, "ghcr.io/owner/penstock/router:0.1.0"]))
    with pytest.raises(ReleaseError, match=r"expected registry/name@sha256:…, found .*router:0\.1\.0"):
        registry.read_pushed(listed)


def test_a_push_to_the_wrong_registry_says_what_was_expected(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To one that is not there, and with a chart whose images are elsewhere."""
    monkeypatch.setattr(registry, "TITLES", {TARGET: images.TITLES[TARGET]})
    nowhere = f"127.0.0.1:{free_port()}/penstock"
    chart.package(built, COMMIT, "")
    with pytest.raises(ReleaseError, match=rf"images\.prefix: expected {nowhere}, .*run the step `chart`"):
        registry.push(built, COMMIT, nowhere, plain=True)
    chart.package(built, COMMIT, nowhere)
    with pytest.raises(ReleaseError, match=r"expected a registry that takes images from you (?s:.*)refused"):
        registry.push(built, COMMIT, nowhere, plain=True)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("", "VERSION: expected a version such as 0.1.0 or 0.2.0rc1, found ''"),
        ("1.0", "VERSION: expected a version such as 0.1.0 or 0.2.0rc1, found '1.0'"),
        ("9.9.9", "pyproject.toml: project.version: expected 9.9.9, found "),
    ],
)
def test_a_version_that_the_checkout_does_not_say_is_refused(said: str, message: str) -> None:
    with pytest.raises(ReleaseError) as raised:
        check_version(said)
    assert str(raised.value).startswith(message)


def test_a_checkout_with_changes_is_refused_by_the_names_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", tmp_path], check=True)
    (tmp_path / "README.md").write_text("")
    (tmp_path / "new file").touch()
    monkeypatch.setattr(version, "ROOT", tmp_path)
    with pytest.raises(ReleaseError) as raised:
        version.read_commit(COMMIT.version)
    assert str(raised.value).endswith('found changed: README.md, "new file"')


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release's folder with one image."""
    into = tmp_path_factory.mktemp("dist")
    images.build(TARGET, into / "images", COMMIT)
    return into


def test_two_builds_of_an_image_have_one_digest(built: Path, tmp_path: Path) -> None:
    """But for the label that names the commit."""
    later = dataclasses.replace(COMMIT, revision="1" * 40)
    other = images.build(TARGET, tmp_path / "images", later)
    (first,) = json.loads((built / "images/index.json").read_text())["manifests"]
    layers = [
        json.loads((root / "images/blobs/sha256" / digest.removeprefix("sha256:")).read_text())["layers"]
        for root, digest in ((built, first["digest"]), (tmp_path, other))
    ]
    assert layers[0] == layers[1]


def test_what_is_signed_is_accepted_and_what_is_altered_is_not(
    built: Path, keys: Path, local_registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Image, bill of materials and chart, checked by cosign with the public key, as a policy in a cluster."""
    monkeypatch.setattr(registry, "TITLES", {TARGET: images.TITLES[TARGET]})
    chart.package(built, COMMIT, local_registry)
    bills.describe_image(TARGET, built, COMMIT)
    named = {each["name"] for each in json.loads((built / f"{TARGET}.cdx.json").read_text())["components"]}
    assert {"penstock-serving", "msgspec", "libc6"} <= named
    pushed = registry.push(built, COMMIT, local_registry, plain=True)
    registry.push_metadata(local_registry, plain=True)
    with pytest.raises(ReleaseError, match=r"expected a signature by .*(?s:.*)no signatures found"):
        registry.verify(pushed, COMMIT, key=keys / "cosign.pub", plain=True)
    registry.sign(pushed, built, COMMIT, key=keys / "cosign.key", plain=True)
    registry.verify(pushed, COMMIT, key=keys / "cosign.pub", plain=True)

    manifest = f"http://{local_registry.replace('/', '/v2/', 1)}/charts/penstock/manifests/artifacthub.io"
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(manifest, headers=accept), timeout=10) as answer:
        (layer,) = json.load(answer)["layers"]
    assert layer["mediaType"] == "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"

    altered = builder.copy(
        f"docker://{local_registry}/{TARGET}:{COMMIT.version}",
        f"docker://{local_registry}/{TARGET}:{COMMIT.version}",
        *("--format=v2s2", "--src-tls-verify=false", "--dest-tls-verify=false"),
    )
    with pytest.raises(ReleaseError, match="no signatures found"):
        registry.verify([f"{local_registry}/{TARGET}@{altered}"], COMMIT, key=keys / "cosign.pub", plain=True)


def test_what_was_pushed_is_listed_although_artifact_hubs_part_is_refused(
    tmp_path: Path, local_registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it can be signed; the step fails all the same."""

    def refuse(*_: str) -> str:
        raise DevclusterError("no such media types here")

    monkeypatch.setattr(registry, "TITLES", {})
    monkeypatch.setattr(command, "read_commit", lambda _: COMMIT)
    monkeypatch.setattr(builder, "copy", refuse)
    chart.package(tmp_path, COMMIT, local_registry)
    options = ["--registry", local_registry, "--plain-http", "--out", str(tmp_path)]
    assert command.main([COMMIT.version, "push", *options]) == 1
    (pushed,) = registry.read_pushed(tmp_path / "pushed.json")
    assert pushed.startswith(f"{local_registry}/charts/penstock@sha256:")


def test_a_registry_that_is_gone_is_not_taken_for_one_without_signatures(keys: Path) -> None:
    gone = f"127.0.0.1:{free_port()}/penstock/charts/penstock@sha256:{'0' * 64}"
    with pytest.raises(ReleaseError, match=r"do not install it; cosign found: (?s:.*)refused") as raised:
        registry.verify([gone], COMMIT, key=keys / "cosign.pub", plain=True)
    assert "found none" not in str(raised.value)


def test_the_chart_names_the_images_of_its_release(tmp_path: Path) -> None:
    """`helm install` needs no value; and two archives of a commit are the same bytes."""
    programs.ensure("helm")
    archive = chart.package(tmp_path / "a", COMMIT, "registry.example/penstock")
    again = chart.package(tmp_path / "b", COMMIT, "registry.example/penstock")
    assert again.read_bytes() == archive.read_bytes()
    helm = [str(programs.program("helm", "helm")), "template", "penstock", str(archive)]
    rendered = subprocess.run(helm, capture_output=True, text=True, check=True).stdout
    shown = subprocess.run(
        [helm[0], "show", "chart", str(archive)], capture_output=True, text=True, check=True
    )
    listed = yaml.safe_load(yaml.safe_load(shown.stdout)["annotations"]["artifacthub.io/images"])
    assert [image["name"] for image in listed] == [*builder.TARGETS, *builder.FORMATS]
    for image in listed:
        assert image["image"] == f"registry.example/penstock/{image['name']}:{COMMIT.version}"
        whole = rendered.replace("{format}", image["name"].removesuffix("-model"))
        assert f'"{image["image"]}"' in whole


def test_the_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    text = notes.write(tmp_path, COMMIT).read_text()
    assert "ModelBackend" in text
    assert "\n## " not in text
    log = tmp_path / "log.md"
    log.write_text("## 0.2.0\n\nb\n\n## 0.1.0\n\na\n")
    assert notes.write(tmp_path, COMMIT, log).read_text() == "a\n"
    with pytest.raises(ReleaseError, match=r"expected a section '## 9\.0\.0', found none"):
        notes.write(tmp_path, dataclasses.replace(COMMIT, version="9.0.0"), log)


def test_links_in_the_notes_lead_to_the_files_of_the_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release's page is in no folder of the repository."""
    monkeypatch.setenv("SOURCE_URL", "https://git.example/penstock")
    log = tmp_path / "log.md"
    log.write_text("## 0.1.0\n[a](docs/a.md#b), [c](https://c.example)\n")
    assert notes.write(tmp_path, COMMIT, log).read_text() == (
        "[a](https://git.example/penstock/blob/v0.1.0/docs/a.md#b), [c](https://c.example)\n"
    )


def test_the_command_says_what_it_lacks(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "release", *arguments, "--out", str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.splitlines()[-1]

    for options in (["push"], ["chart", "--registry", "https://ghcr.io/owner"], ["--registry", "ghcr.io"]):
        code, said = run("0.1.0", *options)
        assert code == 1
        assert said.startswith(
            "release: REGISTRY (--registry): expected host and path, such as ghcr.io/owner/"
        )
    assert run("0.1.0", "wheels")[1].startswith("python -m release: error: step: expected one of packages, ")
    assert run("0.0.9", "sums") == (
        1,
        "release: pyproject.toml: project.version: expected 0.0.9, found 0.1.0",
    )
