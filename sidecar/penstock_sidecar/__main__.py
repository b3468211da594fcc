"""`python -m penstock_sidecar`: run one sidecar until a signal ends it."""

from __future__ import annotations

import sys

from penstock_wire.extras import needs

with needs("penstock-sidecar", "sidecar"):
    from penstock_sidecar import config
    from penstock_sidecar.app import Sidecar
    from penstock_wire import process
    from penstock_wire.tracing import Unavailable


def main() -> int:
    """Run a sidecar; returns the exit code."""
    parsed = config.parse()
    process.set_log_level(parsed.log_level)
    process.log_libraries()

    async def serve() -> int:
        return await Sidecar(parsed).run()

    try:
        return process.run(serve)
    except Unavailable as error:
        print(f"penstock-sidecar: --tracing: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
