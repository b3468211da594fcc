"""Which build runs: with compiled modules on the path of a request, or Python alone."""

from __future__ import annotations

from penstock_wire import h1_front_connection

BUILD = "python" if (h1_front_connection.__file__ or "").endswith(".py") else "compiled"
"""`compiled` or `python`; nothing but speed differs. All listed modules are compiled together, or none."""
