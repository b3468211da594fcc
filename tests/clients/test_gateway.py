"""gRPC and HTTP through nginx, as docs/how-to/grpc.md sets it up: TLS ends there, and a call stays whole."""

from __future__ import annotations

import asyncio
import datetime
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.rpc import error_details_pb2, status_pb2

from bench.proxies import program
from tests.support.http.grpc_messages import call, doubles, infer, numbers
from tests.support.pages.page import DOCS
from tests.support.processes.penstock_run import Run
from tests.support.processes.ports import free_port

CLASS = """
import numpy as np
import penstock
from numpy.typing import NDArray


class Double:
    @penstock.batched
    def double(self, rows: list[NDArray[np.float32]]):
        return np.stack(rows) * 2
"""
SERVER = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 1000; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  server {{
    listen 127.0.0.1:{port} ssl http2; ssl_certificate {folder}/cert; ssl_certificate_key {folder}/key;
    {part}
  }}
}}
"""


def certificate(folder: Path) -> bytes:
    """Write a certificate for localhost and its key; returns the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    (folder / "cert").write_bytes(made)
    (folder / "key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[str]:
    (tmp_path / "double.py").write_text(CLASS)
    run = await Run(tmp_path).start("double:Double")
    await run.ready()
    yield run.url.removeprefix("http://")
    await run.stop()


async def test_calls_and_requests_pass_nginx_over_one_tls_port(served: str, tmp_path: Path) -> None:
    """Many at once, large ones, and an error with its details."""
    trusted, port = certificate(tmp_path), free_port()
    (part,) = re.findall(r"(?s)```nginx\n(.*?)```", (DOCS / "how-to" / "grpc.md").read_text())
    assert part.count("double.default.svc:80") == 2
    part = part.replace("double.default.svc:80", served)
    (tmp_path / "nginx.conf").write_text(SERVER.format(folder=tmp_path, port=port, part=part))
    gateway = await asyncio.create_subprocess_exec(program("nginx"), "-c", str(tmp_path / "nginx.conf"))
    try:
        credentials = grpc.ssl_channel_credentials(trusted)
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
            first = call(channel, "ModelInfer", doubles(0.0), wait_for_ready=True, timeout=60)
            assert numbers(await first) == [0.0]
            answers = await asyncio.gather(*(infer(channel, float(each)) for each in range(200)))
            assert [numbers(each) for each in answers] == [[2.0 * each] for each in range(200)]
            large = await infer(channel, 1.0, width=600_000)
            assert np.frombuffer(large.raw_output_contents[0], np.float32).sum() == 1_200_000
            wrong = doubles(1.0)
            wrong.inputs[0].shape[0] = 3
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, "ModelInfer", wrong)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            told = dict(caught.value.trailing_metadata() or ())["grpc-status-details-bin"]
            info = error_details_pb2.ErrorInfo()
            assert status_pb2.Status.FromString(told).details[0].Unpack(info)  # type: ignore[arg-type]
            assert info.reason == "bad_shape"
        context = ssl.create_default_context(cadata=trusted.decode())
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"https://localhost:{port}/double", json={"instances": [[4.0]]}, ssl=context
            ) as answer,
        ):
            assert (await answer.json()) == {"predictions": [[8.0]]}
    finally:
        gateway.terminate()
        await gateway.wait()
