"""A web application in the cluster's network, with a certificate: an API server calls it.

A module that is such a process ends in `serve(app, address)`, which prints the port, then its authority.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from devcluster.cluster import Cluster
from devcluster.network import FIRST
from penstock_operator.control import pki
from penstock_operator.control.certificates import server_context, show
from tests.support.cluster.k8s import ROOT

_LIFE = 86_400.0


async def serve(app: web.Application, address: str) -> None:
    """Serve on an address until killed."""
    context = server_context()
    authority = pki.make_authority(now=time.time(), life=_LIFE)
    show(context, pki.issue(authority, names=(address,), now=time.time(), life=_LIFE))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, address, 0, ssl_context=context).start()
    print(runner.addresses[0][1], base64.b64encode(authority.certificate).decode(), flush=True)
    await asyncio.Event().wait()


@contextmanager
def running(cluster: Cluster, module: str, *arguments: str) -> Iterator[tuple[int, str]]:
    """Run a module of this folder on the first node's address, its first argument.

    Returns:
        Its port, and its authority as Kubernetes' `caBundle` takes it.
    """
    command = [*cluster.exec_prefix, sys.executable, "-m", f"tests.support.cluster.{module}"]
    with subprocess.Popen(
        [*command, FIRST.address, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port, _, authority = process.stdout.readline().strip().partition(" ")
            yield int(port), authority
        finally:
            process.kill()
