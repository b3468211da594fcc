"""Packs the user's code into the archive that `penstock deploy` puts into a ConfigMap.

The same files always give the same bytes, so that the digest says whether anything has changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from penstock.errors import LoadError
from penstock.local.source_files import NOT_SOURCE
from penstock_wire.unpack import REQUIREMENTS, WHEELS

MOST_BYTES = 900 * 1024
"""Of an archive: a ConfigMap has at most 1 MiB, and base64 is not counted, but names and labels are."""
_PIN = r"===?\s*[^\s;*,()]+"
_PINNED = re.compile(
    rf"[A-Za-z0-9][\w.-]*\s*(\[[^\]]*\])?\s*(({_PIN}|\(\s*{_PIN}\s*\))(?=\s*;|\s+--|\s*$)|@\s*https?://)"
    r"|https?://\S+\.whl(?=[\s?#]|$)"
)
"""A requirement that pip takes with hashes."""
_HASH = re.compile(r"\s--hash[\s=]")
_HASHED_URL = re.compile(r"://\S+[#&]sha(256|384|512)=")
_CREDENTIALS = re.compile(r"(?<=://)(?!(([\w.-]*|\$\{[A-Z0-9_]+\}):)?\$\{[A-Z0-9_]+\}@)[^/?#\s]*@")
"""In a URL; not a password that is a variable of the pod's environment, which pip puts in."""
_HARMLESS = ("--hash", "--require-hashes", "--only-binary", "--prefer-binary", "--pre")
_ELSEWHERE = {
    ("-r", "--requirement", "-c", "--constraint"): "the lines of that file here, since no other goes along",
    ("-i", "--index-url", "--extra-index-url", "--trusted-host", "-f", "--find-links", "--no-index"): (
        "the index in the environment of the pod, such as PIP_INDEX_URL"
    ),
}
"""Options of files of requirements, and what to do in their place."""
_LARGEST = 3
"""So many files are named where an archive is too large."""


@dataclasses.dataclass(frozen=True, slots=True)
class CodeArchive:
    """An archive of code.

    Args:
        data: the ZIP archive.
    """

    data: bytes

    @property
    def digest(self) -> str:
        """`sha256:` and the archive's SHA-256."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"


def local_files(root: Path, modules: Iterable[ModuleType] | None = None) -> dict[str, Path]:
    """Find the files of the packages below a folder that this process has imported.

    A package goes whole, with its data, from its top: what is imported later is there, too. Hidden files,
    bytecode and virtual environments stay out.

    Args:
        root: the folder from which modules are imported.
        modules: those that count; None = all that are imported.

    Returns:
        The files by their path below `root`.

    Raises:
        LoadError: a module has the name of one of Python's.
    """
    files: dict[str, Path] = {}
    tops: set[Path] = set()
    for module in list(sys.modules.values()) if modules is None else modules:
        file = getattr(module, "__file__", None)
        path = Path(file) if isinstance(file, str) else None
        if path is None or not path.is_relative_to(root) or _left_out(below := path.relative_to(root), root):
            continue
        if below.with_suffix("").as_posix().removesuffix("/__init__") != module.__name__.replace(".", "/"):
            continue  # imported from another folder of `sys.path`, which is below this one
        top = root / below.parts[0]
        if top in tops:
            continue
        if top.stem in sys.stdlib_module_names:  # near enough: the pod's Python can be another
            here = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise LoadError(
                f"expected modules with names of their own, found {top.name}: "
                f"in a pod it would hide Python's module {top.stem} (of Python {here}, which runs here)"
            )
        tops.add(top)
        if top.is_file():
            files[top.name] = top
        else:
            files |= {
                name.as_posix(): each
                for each in top.rglob("*")
                if each.is_file() and not _left_out(name := each.relative_to(root), root)
            }
    return files


def _left_out(path: Path, root: Path) -> bool:
    parts = path.parts
    return (
        any(part.startswith(".") or part in NOT_SOURCE for part in parts)
        or path.suffix == ".pyc"
        or any((root / parent / "pyvenv.cfg").exists() for parent in path.parents)
    )


def pack(files: Mapping[str, Path], *, requirements: str | None = None) -> CodeArchive:
    """Pack files into an archive.

    Args:
        files: by their path in the archive.
        requirements: a list of requirements with hashes, as pip reads it; None for none.

    Raises:
        LoadError: there is no file, or the archive is too large for a ConfigMap.
        OSError: a file cannot be read.
    """
    if not files:
        raise LoadError("expected code of yours below the working directory, found none: start there")
    contents = {name: path.read_bytes() for name, path in files.items()}
    if requirements is not None:
        contents[REQUIREMENTS] = requirements.encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(contents):
            # 1980 is the first year that ZIP knows.
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, contents[name], compresslevel=9)
    if len(data := packed.getvalue()) > MOST_BYTES:
        largest = sorted(contents, key=lambda name: -len(contents[name]))[:_LARGEST]
        sizes = ", ".join(f"{name} ({len(contents[name]) // 1024} KiB)" for name in largest)
        raise LoadError(
            f"expected code of at most {MOST_BYTES // 1024} KiB compressed, found {len(data) // 1024} KiB: "
            f"{sizes}; put data into an image or a volume, and wheels into a bucket"
        )
    return CodeArchive(data)


def wheels_of(folder: Path, requirements: str) -> dict[str, Path]:
    """Find the wheels that requirements demand.

    Args:
        folder: holds them.
        requirements: with hashes.

    Returns:
        The wheels by their path in the archive.

    Raises:
        LoadError: there is none.
        OSError: one cannot be read.
    """
    wheels = {
        f"{WHEELS}/{path.name}": path
        for path in sorted(folder.glob("*.whl"))
        if hashlib.sha256(path.read_bytes()).hexdigest() in requirements
    }
    if not wheels:
        raise LoadError(
            f"{folder}: expected the wheels that the requirements demand by their hashes, found none"
        )
    return wheels


def locked(path: Path, wheels: Path | None = None) -> str:
    """Return a file of requirements with the hash of each; uv looks them up where the file has none.

    Args:
        path: a file as pip reads it.
        wheels: a folder of wheels, the only place to look; None = the index that uv is set up for.

    Raises:
        LoadError: uv is not here, or finds no versions that fit; or a pod could not install from it.
        OSError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: expected text in UTF-8, found other bytes: {error}") from error
    lines = [line for line in _lines(text) if not line.startswith(_HARMLESS)]
    if any(map(_HASH.search, lines)) or (lines and all(map(_HASHED_URL.search, lines))):
        return _checked(path, text)
    own = [sys.executable, "-P", "-m", "uv"] if importlib.util.find_spec("uv") else []
    uv = own or ([found] if (found := shutil.which("uv")) else [])
    if not uv:
        raise LoadError(
            f"{path}: expected a --hash for each requirement, or uv to look them up: pip install uv"
        )
    command = [
        *uv,
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
    ]
    command += ["--no-emit-index-url", "--no-emit-find-links", str(path)]
    command += ["--no-index", "--find-links", str(wheels)] if wheels is not None else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a command of ours
    if done.returncode:
        raise LoadError(f"{path}: {' '.join(done.stderr.split())}")
    return _checked(path, done.stdout)


def _lines(text: str) -> Iterator[str]:
    """The lines of requirements as pip reads them, without comments."""
    text = re.sub(r"(?m)^[ \t]*#.*", "", text)  # such a line is not continued
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        if stripped := re.sub(r"(^|\s)#.*", "", line).strip():
            yield stripped


def _checked(path: Path, text: str) -> str:
    """Return requirements that a pod can install from this text alone, by pip and only from wheels."""
    for line in _lines(text):
        options = [each for each in re.findall(r"(?<!\S)(--[\w-]+|-\w?)", line) if each not in _HARMLESS]
        if line.startswith("-") and not options:
            continue
        # NB: an option's value can be a password, such as that of an index.
        shown = options[0] if options else _CREDENTIALS.sub("", _HASH.split(line)[0])
        wanted = next((wanted for names, wanted in _ELSEWHERE.items() if shown in names), None)
        if wanted is None and _PINNED.match(line) is None:
            wanted = "name==version, or a wheel's name @ URL; make a wheel of a folder (pip wheel)"
        if wanted is None and not (_HASH.search(line) or _HASHED_URL.search(line)):
            wanted = "a --hash for each requirement, or for none"
        if wanted is not None:
            raise LoadError(f"{path}: expected {wanted}, found {shown}")
    if (found := _CREDENTIALS.search(text)) is not None:  # in a comment, too: all of the text goes along
        rest = re.split(r"\s", text[found.end() :], maxsplit=1)[0] or "the end of its line"
        raise LoadError(
            f"{path}: expected a variable of the pod's environment, such as ${{PASSWORD}}, for the password "
            f"of a URL, found it as text, before {rest}"
        )
    return text
