"""Pods of a backend with an artifact: sidecars and first steps, before an operator's real port."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from penstock_operator.clock import LoopClock
from penstock_operator.desired.settings import Versioned
from penstock_wire.control import documents
from penstock_wire.control.artifact import ArtifactDemand
from penstock_wire.control.settings import Settings, encode
from tests.support.http.file_server import FileServer
from tests.support.processes import control_server
from tests.support.processes.artifact_step import Step
from tests.support.processes.ports import free_port
from tests.support.processes.sidecar_process import Program


class Pod:
    """A pod: a sidecar with an address of its own, and a first step.

    Args:
        number: of the pod among those of this test process.
    """

    def __init__(
        self, number: int, folder: Path, server: FileServer, report_to: str, *arguments: str
    ) -> None:
        self.name, self.address = f"m-{number}", f"127.{20 + os.getpid() % 200}.1.{number}"
        folder.mkdir()
        self.volume, admin = folder / "volume", free_port()
        self.port, self.model_port = free_port(), free_port()
        self.volume.mkdir()
        (folder / "token").write_text(self.name)
        self.sidecar = Program(
            *(
                "penstock_sidecar",
                f"--listen={self.address}:{self.port}",
                f"--admin={self.address}:{admin}",
            ),
            *(f"--model=http://127.0.0.1:{self.model_port}", f"--artifact={self.volume}/state.json"),
            *(f"--report-to={report_to}", f"--token-file={folder}/token"),
            env={"PENSTOCK_POD": self.name, "PENSTOCK_POD_UID": f"uid-{self.name}", "PENSTOCK_BACKEND": "m"},
        )
        sidecar = f"http://{self.address}:{admin}"
        trust = {"SSL_CERT_FILE": str(server.authority)}
        self.step = Step(self.volume, f"{server.url}/model.bin", f"--sidecar={sidecar}", *arguments, **trust)
        self.part = self.volume / "parts" / "model.bin"

    @property
    def files(self) -> dict[str, bytes]:
        """What its model finds."""
        return self.step.files()


class World:
    """The pods of a backend and its operator, which records the digest of the first download."""

    def __init__(self, folder: Path, server: FileServer, stack: AsyncExitStack) -> None:
        self.folder, self.server = folder, server
        self.operator = control_server.Harness(check_peer=False, clock=LoopClock())
        self.operator.cluster.answer["TokenReview"] = self._review
        self._stack = stack
        self.record("")

    def _review(self, review: dict[str, Any]) -> dict[str, Any]:
        name = review["spec"]["token"]
        return review | {"status": control_server.verdict(name=name, uid=f"uid-{name}")}

    def record(self, found: str) -> None:
        """Record a digest, as the operator does in a status and in settings."""
        demand = ArtifactDemand(source="source", digest=found) if found else msgspec.UNSET
        document = encode(Settings(version=1, backend="m", artifact=demand))
        made = Versioned(version=1, document=document, digest=documents.digest(document), changed=False)
        self.operator.made["n", "m-backend-settings"] = made
        parent = control_server.parent("m")
        self.operator.store.put(parent | {"status": {"artifact": {"digest": found or None}}})

    async def pod(self, number: int, *arguments: str) -> Pod:
        """Start the sidecar of a pod."""
        pod = Pod(number, self.folder / f"pod{number}", self.server, self.operator.url, *arguments)
        labelled = {"penstock.dev/backend": "m"}
        self.operator.store.put(control_server.pod(pod.name, f"uid-{pod.name}", pod.address, **labelled))
        await pod.sidecar.start()
        self._stack.push_async_callback(kill, pod)
        return pod

    def read(self) -> int:
        """Bytes that the origin was asked for, without the first one of each look."""
        spans = [fields["range"].removeprefix("bytes=").split("-") for _, fields in self.server.asked]
        return sum(int(end) + 1 - int(start) for start, end in spans if end != "0")


async def kill(pod: Pod) -> None:
    """End a pod as a node that goes away does."""
    if pod.sidecar.process.returncode is None:
        pod.sidecar.process.kill()
    await pod.sidecar.ended()


async def whole(process: subprocess.Popen[str]) -> str:
    """Wait for a step's end; returns its last words."""
    _, error = await asyncio.to_thread(process.communicate, timeout=60)
    return error
