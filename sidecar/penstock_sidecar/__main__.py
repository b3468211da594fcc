"""`python -m penstock_sidecar`: run one sidecar until it is told to end."""

from __future__ import annotations

import sys

from penstock_sidecar import config
from penstock_sidecar.app import Sidecar
from penstock_wire import process


def main() -> int:
    """Run a sidecar; returns the exit code."""
    parsed = config.parse()
    process.set_log_level(parsed.log_level)

    async def serve() -> int:
        return await Sidecar(parsed).run()

    return process.run(serve)


if __name__ == "__main__":
    sys.exit(main())
