"""A collector of OpenTelemetry's spans, over OTLP/HTTP."""

from __future__ import annotations

import gzip
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Takes what is exported."""

    def __init__(self) -> None:
        self.resources: list[dict[str, str]] = []
        self.spans: list[Any] = []

    async def start(self) -> str:
        """Listen; returns its URL."""
        app = web.Application()
        app.router.add_post("/v1/traces", self.take)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        host, port = self.runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def take(self, request: web.Request) -> web.Response:
        """Take an export."""
        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        exported = ExportTraceServiceRequest.FromString(body)
        for resource in exported.resource_spans:
            self.resources.append(
                {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            )
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return web.Response(body=b"", content_type="application/x-protobuf")
