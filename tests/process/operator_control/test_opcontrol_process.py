"""The operator as a process: its keys in a Secret, its authorities in every settings ConfigMap."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.kinds import CONFIG_MAP, ENDPOINT_SLICE, SECRET
from penstock_wire.control.ca_trust import client_context
from tests.support.processes.operator_process import Process, until
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.operator_harness import backend, endpoint

FLAGS = (
    "--report-to",
    "https://127.0.0.1:8016",
    "--reports-listen",
    "127.0.0.1:0",
    "--authority-overlap",
    "0s",
)


@pytest.fixture
async def server() -> AsyncIterator[TinyApiserver]:
    async with TinyApiserver() as running:
        yield running


def authorities(server: TinyApiserver) -> str:
    data = server.cluster.find(SECRET, "penstock-system", "penstock-operator-tls")["data"]
    return base64.b64decode(data["ca.crt"]).decode()


def recorded(server: TinyApiserver, name: str) -> str:
    stored: dict[str, Any] = server.cluster.objects.get(("ConfigMap", "n", name)) or {}
    return str((stored.get("data") or {}).get("ca.crt", ""))


async def refused(process: Process, bundle: str) -> int:
    """Posts without a token where reports come in, having checked the server; the status."""
    address = next(line["address"] for line in process.lines if line["message"] == "reports come in over TLS")
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=client_context(bundle.encode()))
    writer.write(b"POST /reports/sidecar HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


async def test_keys_are_made_told_rotated_and_kept(server: TinyApiserver, tmp_path: Path) -> None:
    """Made once; in each settings ConfigMap; rotated when the Secret is deleted; read by the next process."""
    server.cluster.user_applies(backend())
    server.cluster.user_applies(endpoint())
    process = await Process.start(server, tmp_path, "op-1", *FLAGS)
    try:
        await until(lambda: recorded(server, "m-backend-settings"), "a backend's settings name the authority")
        await until(lambda: recorded(server, "penstock-router-settings"), "and a router's")
        first = authorities(server)
        assert recorded(server, "m-backend-settings") == recorded(server, "penstock-router-settings") == first
        await until(lambda: process.said("synced") == 1, "it leads")
        assert await refused(process, first) in (401, 503)
        ports = server.cluster.find(ENDPOINT_SLICE, "penstock-system", "penstock-operator")["ports"]
        assert [port["name"] for port in ports] == ["control", "reports"]
        assert (
            "penstock_operator_certificate_expiry_timestamp_seconds 0.0"
            not in (await process.get("/metrics"))[1]
        )

        server.cluster.remove(SECRET, "penstock-system", "penstock-operator-tls")
        there = server.cluster.objects
        await until(
            lambda: (
                ("Secret", "penstock-system", "penstock-operator-tls") in there
                and authorities(server) != first
            ),
            "another authority",
        )
        await until(lambda: recorded(server, "m-backend-settings") == authorities(server), "it is told")
        last = authorities(server)
        assert first not in last, "with no overlap the old one is retired at once"
        version = server.cluster.find(CONFIG_MAP, "n", "m-backend-settings")["data"]["settings.json"]
        assert '"version":1' in version, "no setting has changed"
    finally:
        await process.end(signal.SIGTERM)

    process = await Process.start(server, tmp_path, "op-2", *FLAGS)
    try:
        await until(lambda: process.said("synced") == 1, "the next one leads")
        assert authorities(server) == last
        assert await refused(process, last) in (401, 503)
    finally:
        await process.end(signal.SIGTERM)
