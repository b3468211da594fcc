"""A wheel that needs no build and no index."""

from __future__ import annotations

import zipfile
from pathlib import Path

_METADATA = "Metadata-Version: 2.1\nName: tinydep\nVersion: 1.5\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path) -> Path:
    """Write the wheel of `tinydep` 1.5, a module with `VALUE = 5`; returns its path.

    Args:
        folder: where to; it is made.
    """
    folder.mkdir()
    path = folder / "tinydep-1.5-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tinydep.py", "VALUE = 5\n")
        wheel.writestr("tinydep-1.5.dist-info/METADATA", _METADATA)
        wheel.writestr("tinydep-1.5.dist-info/WHEEL", _WHEEL)
        wheel.writestr("tinydep-1.5.dist-info/RECORD", "")
    return path
