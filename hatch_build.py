"""Builds wheels with compiled modules where the environment says `PENSTOCK_COMPILE=yes`; otherwise pure ones.

Hatchling's build hook (https://hatch.pypa.io/latest/plugins/build-hook/custom/).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface[Any]):
    """Adds what `compile_modules.py` makes to the wheel, which then is for this Python and platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the extension modules to the builder.

        Args:
            version: `standard` or `editable`.
            build_data: of the builder: what to include, and the wheel's tag.

        Raises:
            SystemExit: nothing can be compiled here, or the compiler fails.
        """
        if os.environ.get("PENSTOCK_COMPILE") != "yes" or version != "standard":
            return
        sys.path.insert(0, self.root)
        import compile_modules

        if why := compile_modules.unable():
            raise SystemExit(f"PENSTOCK_COMPILE=yes: expected to compile modules, but {why}")
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-compiled-")
        folder = Path(self._folder.name)
        compile_modules.compile_into(folder)
        build_data["force_include"].update(
            {str(path): str(path.relative_to(folder)) for path in sorted(folder.rglob("*.so"))}
        )
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled; it is in the wheel now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
