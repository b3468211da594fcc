"""`python -m penstock_sidecar.artifact URI FOLDER --source …`: a pod's first step, before its model."""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from penstock_sidecar.artifact.errors import ArtifactError
from penstock_sidecar.artifact.neighbour import Guide
from penstock_sidecar.artifact.progress import FULL
from penstock_sidecar.artifact.store import Store
from penstock_wire import contract

AUTHORITY = "SSL_CERT_PEM"
DEBIAN = "/etc/ssl/certs/ca-certificates.crt"
"""The public authorities of the image, which its Python does not name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the step.

    Args:
        argv: the arguments; None: the process's own.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m penstock_sidecar.artifact", description=__doc__)
    parser.add_argument("uri", help="s3://…, gs://…, az://…, https://… or hf://…")
    parser.add_argument("folder", type=Path, help="where to; it keeps what came over a restart")
    parser.add_argument("--source", required=True, help="the artifact's name in reports")
    parser.add_argument(
        "--include", action="append", default=[], help="a pattern of wanted files; repeatable"
    )
    parser.add_argument("--digest", help="sha256:… that the files must have")
    parser.add_argument(
        "--settings", type=Path, help="the settings file, which has the first download's digest"
    )
    parser.add_argument(
        "--sidecar", help="URL of the pod's sidecar, which knows the pods that have the files"
    )
    options = parser.parse_args(argv)
    guide = Guide(
        source=options.source, digest=options.digest, settings=options.settings, sidecar=options.sidecar
    )
    _trust_also(os.environ.get(AUTHORITY, ""))
    limit = int(os.environ.get(contract.STORAGE_LIMIT_ENV) or 0)
    store = Store(options.folder, source=options.source, limit=limit, clock=time.monotonic)
    try:
        state = asyncio.run(store.fill(options.uri, options.include, guide=guide))
    except ArtifactError as error:
        return _failed(str(error))
    except OSError as error:
        full = error.errno in FULL
        return _failed("expected room for the files, found the volume full" if full else str(error))
    print(f"penstock artifact: {state.decode()}", flush=True)
    return 0


def _trust_also(authority: str) -> None:
    """Let obstore, which takes one file, trust an authority beside those that it trusts anyway.

    Args:
        authority: its certificate, PEM; nothing if empty.
    """
    if not authority:
        return
    usual = Path(os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or DEBIAN)
    text = usual.read_text() if usual.is_file() else ""
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(f"{text}\n{authority}\n")
    os.environ["SSL_CERT_FILE"] = file.name


def _failed(words: str) -> int:
    print(f"penstock artifact: {words}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # NB: obstore's threads may still end requests; where they meet an interpreter that ends, they abort it.
    os._exit(code)
