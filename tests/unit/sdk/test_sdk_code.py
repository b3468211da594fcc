"""Code without an image: what is packed, and what a pod's first step unpacks."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from penstock import export
from penstock.code_archive import local_files, locked, pack
from penstock.errors import LoadError
from penstock_operator.api.modelbackend import ModelBackend
from penstock_wire import contract, unpack


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package, a module beside it, and what does not go along."""
    for name, text in {
        "shop/__init__.py": "",
        "shop/model.py": "import helper\nclass Shop:\n    def predict(self, items): return items\n",
        "shop/data/words.txt": "a b",
        "shop/.env": "SECRET=1",
        "shop/__pycache__/model.cpython-311.pyc": "x",
        "helper.py": "",
        "unrelated.py": "",
        "venv/pyvenv.cfg": "",
        "venv/lib/other.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("shop", "shop.model", "helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert export.main(arguments) == 0, capsys.readouterr().err
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_the_code_goes_along_and_runs_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is imported below the working directory, packages whole; the backend names it by its digest."""
    code, backend, _ = printed(capsys, "shop.model:Shop", "--code", "--name=front")
    resource = ModelBackend.model_validate({**backend, "metadata": {**backend["metadata"], "uid": "u"}})
    assert resource.spec.model.python is not None
    assert resource.spec.model.python.code is not None
    archive = base64.b64decode(code["binaryData"][contract.CODE_KEY])
    digest = resource.spec.model.python.code.digest
    assert code["metadata"]["name"] == f"front-code-{digest.removeprefix('sha256:')[:12]}"
    assert resource.spec.model.python.code.config_map_ref.name == code["metadata"]["name"]
    assert code["immutable"]
    target = project / "unpacked"
    target.mkdir()
    unpack.unpack(archive, target, digest=digest)
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert files == {"shop/__init__.py", "shop/model.py", "shop/data/words.txt", "helper.py"}
    # The same files are the same version, whenever they were written.
    (project / "helper.py").touch()
    assert printed(capsys, "shop.model:Shop", "--code", "--name=front")[0] == code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected --image with the code in it, or --code, found neither"),
        (("--image=i", "--requirements=r.txt"), "expected --requirements with --code alone"),
        (("--code", "--requirements=r.txt"), "No such file or directory: 'r.txt'"),
        (("--code", "--name=No_Name"), "No_Name"),
        (("--code", '--init-kwargs={"a": 1}'), "Shop.bind: expected arguments (): got an unexpected keyword"),
    ],
)
def test_what_cannot_be_exported_says_why(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert export.main(["shop.model:Shop", *arguments]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("shop/model.py:Shop", "expected a module such as shop.model, found the file shop/model.py"),
        ("../helper.py:Shop", "expected a module such as helper, found the file ../helper.py"),
        ("shop.data:Shop", "expected Shop in module shop.data, found no Shop (/"),
        ("shop.model:Gone", "expected Gone in module shop.model, found no Gone (/"),
        ("alone:Alone", "expected alone to be in a package, since it imports relatively, found attempted"),
    ],
)
def test_what_is_no_target_says_what_would_be(
    project: Path, capsys: pytest.CaptureFixture[str], target: str, words: str
) -> None:
    (project / "alone.py").write_text("from . import helper")
    assert export.main([target, "--code"]) == 1
    assert words in capsys.readouterr().err


def test_a_wheelhouse_is_the_artifact_of_each_backend(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else is asked for packages, and the user's own variables come last."""
    (project / "r.txt").write_text("a==1 --hash=sha256:00\n")
    wheels = ("--requirements=r.txt", "--wheelhouse=s3://bucket/wheels")
    _, backend, _ = printed(capsys, "shop.model:Shop", "--code", *wheels)
    resource = ModelBackend.model_validate({**backend, "metadata": {**backend["metadata"], "uid": "u"}})
    assert resource.spec.model.artifact is not None
    assert resource.spec.model.artifact.uri == "s3://bucket/wheels"
    assert resource.spec.model.artifact.mount_path == export.ARTIFACT_FOLDER
    assert backend["spec"]["model"]["python"]["env"] == [
        {"name": "PIP_NO_INDEX", "value": "1"},
        {"name": "PIP_FIND_LINKS", "value": export.ARTIFACT_FOLDER},
    ]
    assert export.main(["shop.model:Shop", "--code", "--wheelhouse=s3://bucket/wheels"]) == 1
    assert "expected --wheelhouse with --requirements" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "a==1 --hash=sha256:00\n",
        "--require-hashes\n# all\na.b-c[d] == 1.0 ; python_version > '3' \\\n    --hash=sha256:00  # why\n",
        "a @ https://host/a-1-py3-none-any.whl --hash=sha256:00",
        "a (==1.0) --hash sha256:00\nb[c] ( == 1 ) ; python_version > '3' --hash=sha256:00\n",
        "https://host/a-1-py3-none-any.whl#sha256=00\n--pre\nb @ https://host/b.whl#egg=b&sha512=00",
        "a==1 --hash=sha256:00\nhttps://host/b-1-py3-none-any.whl --hash=sha256:00",
        "a @ https://${USER}:${PASSWORD}@host/a-1-py3-none-any.whl --hash=sha256:00",
        "a @ https://oauth2:${TOKEN}@host/a-1-py3-none-any.whl --hash=sha256:00",
    ],
)
def test_requirements_with_hashes_stay_as_they_are(tmp_path: Path, text: str) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    assert locked(path) == text


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("b==2", "expected a --hash for each requirement, or for none, found b==2"),
        ("-r other.txt", "expected the lines of that file here, since no other goes along, found -r"),
        (
            "--constraint=c.txt",
            "expected the lines of that file here, since no other goes along, found --constraint",
        ),
        ("-rother.txt", "found -r"),
        ("# why \\\n-r other.txt", "found -r"),
        ("- b==2 --hash=sha256:00", "expected name==version, or .* found -$"),
        (
            "--index-url https://me:s3cret@host/",
            "in the environment of the pod, such as PIP_INDEX_URL, found --index",
        ),
        ("-fhttps://me:s3cret@host/", "found -f"),
        ("-e ./lib", "expected name==version, or .* found -e"),
        ("./lib", "expected name==version, or .* found ./lib"),
        ("b>=2 --hash=sha256:00", "expected name==version, or .* found b>=2"),
        ("b==2.* --hash=sha256:00", "found b==2"),
        ("b==2,<3 --hash=sha256:00", "found b==2,<3"),
        ("b @ git+https://host/b", r"found b @ git\+https://host/b"),
        ("b @ git+https://me:s3cret@host/b", r"found b @ git\+https://host/b"),
        ("b @ https://me:s3cret@host/b.whl --hash=sha256:00", r"a variable .* as text, before host/b\.whl"),
        ("https://s3cret@host/b-1-py3-none-any.whl#sha256=00", "a variable of the pod's environment"),
        ("https://s3cret:${NONE}x@host/b-1-py3-none-any.whl#sha256=00", "a variable of the pod's"),
        ("# -i https://me:s3cret@host/", "before host/"),
        ("# https://me:s3cret@", "before the end of its line"),
        ("--pre --index-url https://me:s3cret@host/", "such as PIP_INDEX_URL, found --index-url"),
        ("b==2 ,<3 --hash=sha256:00", "found b==2 ,<3"),
        ("b (==2 --hash=sha256:00", r"found b \(==2"),
        ("https://host/b.tar.gz --hash=sha256:00", "a wheel's name @ URL"),
    ],
)
def test_requirements_that_no_pod_could_install_are_refused_here(
    tmp_path: Path, lines: str, words: str
) -> None:
    """Its pip has this text alone, and takes each requirement by its hash; a password is not shown."""
    path = tmp_path / "requirements.txt"
    path.write_text(f"a==1 --hash=sha256:00\n{lines}\n")
    with pytest.raises(LoadError, match=words) as raised:
        locked(path)
    assert "s3cret" not in str(raised.value)


def test_requirements_in_other_bytes_than_utf_8_are_refused(tmp_path: Path) -> None:
    """Such as those that PowerShell writes."""
    path = tmp_path / "requirements.txt"
    path.write_bytes("a==1".encode("utf-16"))
    with pytest.raises(LoadError, match="expected text in UTF-8"):
        locked(path)


def test_a_module_with_the_name_of_one_of_pythons_is_refused(tmp_path: Path) -> None:
    """In a pod it is found first, also by what serves."""
    (tmp_path / "statistics.py").touch()
    module = ModuleType("statistics")
    module.__file__ = str(tmp_path / "statistics.py")
    with pytest.raises(LoadError, match=r"found statistics\.py: in a pod it would hide Python's module"):
        local_files(tmp_path, [module])


def test_a_module_of_another_folder_of_the_path_stays_out(tmp_path: Path) -> None:
    """Such as a package that is installed from a checkout below the working directory."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "inner.py").touch()
    module = ModuleType("inner")
    module.__file__ = str(tmp_path / "source" / "inner.py")
    assert local_files(tmp_path, [module]) == {}


def test_too_much_code_names_the_largest_files(tmp_path: Path) -> None:
    noise = random.Random(1)
    files = {"weights.bin": 950_000, "model.py": 10}
    for name, size in files.items():
        (tmp_path / name).write_bytes(noise.randbytes(size))
    with pytest.raises(
        LoadError, match=r"at most 900 KiB compressed, found 928 KiB: weights\.bin \(927 KiB\)"
    ):
        pack({name: tmp_path / name for name in files})
    with pytest.raises(LoadError, match="found none: start there"):
        pack({})


def archive_of(*members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return made.getvalue()


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o120777 << 16
    return entry


def damaged(archive: bytes) -> bytes:
    """The archive with other bytes in the middle of its first member's data."""
    at = archive.index(b"a.py") + len("a.py") + 2
    return archive[:at] + b"\xff" * 8 + archive[at + 8 :]


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        (archive_of(("../out.py", b"")), "below the archive's root, found '../out.py'"),
        (archive_of(("a/../../out.py", b"")), "below the archive's root"),
        (archive_of(("/out.py", b"")), "below the archive's root"),
        (archive_of((link("a"), b"/etc/passwd")), "found a link or device: 'a'"),
        (archive_of(("bomb", bytes(unpack.MOST_BYTES + 1))), "at most 64 MiB of files"),
        (archive_of(*((f"{n}", b"") for n in range(unpack.MOST_FILES + 1))), "at most 10000 files"),
        (b"PK\x03\x04 no archive", "expected a ZIP archive"),
        (archive_of(("a", b"abc" * 99))[:-40], "expected a ZIP archive"),
        (damaged(archive_of(("a.py", random.Random(1).randbytes(99)))), "expected a ZIP archive"),
    ],
    ids=["up", "up-below", "absolute", "link", "bomb", "many", "garbage", "cut", "damaged"],
)
def test_a_hostile_archive_leaves_nothing_outside(tmp_path: Path, archive: bytes, words: str) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    digest = f"sha256:{hashlib.sha256(archive).hexdigest()}"
    with pytest.raises(unpack.BadArchive, match=words):
        unpack.unpack(archive, folder, digest=digest)
    assert {path.name for path in tmp_path.iterdir()} == {"code"}


def test_other_code_than_the_spec_names_is_not_unpacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "code.zip"
    archive.write_bytes(archive_of(("a.py", b"")))
    (tmp_path / "code").mkdir()
    wrong = f"sha256:{'0' * 64}"
    assert unpack.main([str(archive), str(tmp_path / "code"), "--digest", wrong]) == 1
    assert f"expected code with digest {wrong}, found sha256:" in capsys.readouterr().err
    assert list((tmp_path / "code").iterdir()) == []


def test_what_is_installed_comes_before_the_images_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / unpack.INSTALLED
    installed.mkdir(parents=True)
    monkeypatch.setenv(contract.CODE_ENV, str(tmp_path))
    monkeypatch.setattr(sys, "path", ["", "/image/site-packages"])
    unpack.activate()
    assert sys.path == ["", str(installed), "/image/site-packages"]
