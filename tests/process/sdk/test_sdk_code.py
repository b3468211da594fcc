"""Requirements of code without an image: a pod's first step and its server, with the real pip and uv."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from penstock.code_archive import local_files, locked, pack, wheels_of
from penstock.errors import LoadError
from penstock_wire import contract
from penstock_wire.unpack import INSTALLED, REQUIREMENTS
from tests.support.processes.tiny_wheel import write_wheel

MODEL = """
import tinydep
class Model:
    def predict(self, item): return tinydep.VALUE
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one wheel, the only index of pip and uv."""
    folder = tmp_path / "index"
    write_wheel(folder)
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(folder))
    return folder


def first_step(folder: Path, archive: bytes, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the step as a pod does."""
    folder.mkdir(exist_ok=True)
    (folder.parent / "code.zip").write_bytes(archive)
    digest = f"sha256:{hashlib.sha256(archive).hexdigest()}"
    command = [sys.executable, "-m", "penstock_wire.unpack", str(folder.parent / "code.zip"), str(folder)]
    return subprocess.run(
        [*command, "--digest", digest],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_requirements_are_locked_here_and_installed_there(index: Path, tmp_path: Path) -> None:
    """By uv the hashes are found, pip demands them, and the server imports what was installed, whole."""
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("tinydep>=1\n")
    lines = locked(wanted)
    wheel = hashlib.sha256((index / "tinydep-1.5-py3-none-any.whl").read_bytes()).hexdigest()
    assert "tinydep==1.5" in lines
    assert f"--hash=sha256:{wheel}" in lines

    source = tmp_path / "source"
    source.mkdir()
    (source / "shop.py").write_text(MODEL)
    archive = pack({"shop.py": source / "shop.py"}, requirements=lines)
    code = tmp_path / "code"
    # A step that was killed has left half of what it installs.
    half = code / INSTALLED / "tinydep.py"
    half.parent.mkdir(parents=True)
    half.write_text("VALUE = ")
    done = first_step(code, archive.data)
    assert done.returncode == 0, done.stderr
    # What the server does before it serves: it imports the target, and says what it found.
    served = subprocess.run(
        [sys.executable, "-m", "penstock.serve", "shop:Missing"],
        cwd=code,
        env=os.environ | {contract.CODE_ENV: str(code)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "expected Missing in module shop" in served.stderr


def test_the_wheels_of_a_folder_go_along_and_pip_looks_nowhere_else(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the lock names alone; without an index here and there."""
    for tool in ("PIP", "UV"):
        monkeypatch.delenv(f"{tool}_FIND_LINKS")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    (index / "other-1-py3-none-any.whl").write_bytes(b"not wanted")
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("tinydep>=1\n")
    lines = locked(wanted, index)
    wheels = wheels_of(index, lines)
    assert [path.name for path in wheels.values()] == ["tinydep-1.5-py3-none-any.whl"]
    with pytest.raises(LoadError, match="expected the wheels that the requirements demand"):
        wheels_of(tmp_path, lines)
    (tmp_path / "shop.py").write_text(MODEL)
    archive = pack({"shop.py": tmp_path / "shop.py", **wheels}, requirements=lines)
    done = first_step(tmp_path / "code", archive.data)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "code" / INSTALLED / "tinydep.py").is_file()


def test_a_wheel_that_was_exchanged_or_is_of_another_platform_is_not_installed(
    index: Path, tmp_path: Path
) -> None:
    """And the last words name the package, and what the pod is."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("shop.py", MODEL)
        archive.writestr(REQUIREMENTS, f"tinydep==1.5 --hash=sha256:{'0' * 64}\n")
    done = first_step(tmp_path / "code", packed.getvalue())
    assert done.returncode == 1
    assert "tinydep" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("penstock code: pip could not install the requirements")
    (wheel,) = index.iterdir()
    wheel.rename(index / "tinydep-1.5-cp313-cp313-macosx_11_0_arm64.whl")
    done = first_step(tmp_path / "mac", packed.getvalue())
    reason, last = done.stderr.splitlines()[-2:]
    assert reason == "ERROR: No matching distribution found for tinydep==1.5"
    assert last.endswith(f" for Python {sysconfig.get_python_version()} on {sysconfig.get_platform()}")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['pip'] = None\n"
    )  # as in formats' images
    done = first_step(tmp_path / "other", packed.getvalue(), PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr.strip()) == (
        1,
        "penstock code: expected pip in the image, to install requirements, found none: use python-model's",
    )


def test_of_pips_retries_the_first_is_shown_and_each_try_says_the_same(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition shows the last words, which end with what can be done."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(REQUIREMENTS, f"tinydep==1.5 --hash=sha256:{'0' * 64}\n")
    env = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "2"}
    said = [first_step(tmp_path / name, packed.getvalue(), **env).stderr for name in ("first", "second")]
    assert said[0] == said[1]
    assert said[0].count("WARNING: Retrying (") == 1
    assert said[0].count("Connection refused") == 1
    assert "; its index was not reached: PIP_INDEX_URL names another" in said[0].splitlines()[-1]


def test_only_what_was_imported_from_here_goes_along(tmp_path: Path) -> None:
    """A process's installed packages stay out."""
    assert local_files(tmp_path) == {}
