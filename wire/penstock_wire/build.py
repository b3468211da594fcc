"""The kind of build that runs: with compiled modules on the path of a request, or only Python."""

from __future__ import annotations

from penstock_wire.http.server import connection

BUILD = "python" if (connection.__file__ or "").endswith(".py") else "compiled"
"""`compiled` or `python`; nothing but speed differs. All listed modules are compiled together, or none."""
