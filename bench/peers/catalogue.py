"""The peers: how each is started and spoken to."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator

from bench import foreign, processes, venvs


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A server that batches, with the model in it.

    Args:
        name: of its files in this folder.
        label: how people write it.
        path: what predictions are posted to.
        form: a name in `bodies.FORMS`.
        start_seconds: how long its start may take.
        seconds: how long a closed loop must last that each connection is answered several times.
        apart: whether its model is a process of its own, so that its CPU is its own.
    """

    name: str
    label: str
    path: str = "/predict"
    form: str = "instances"
    start_seconds: float = 60
    seconds: float = 3
    apart: bool = False

    def ensure(self) -> None:
        """Install it where it is missing.

        Raises:
            NotInstalledError: its environment could not be made.
        """
        venvs.ensure(self.name)

    @property
    def version(self) -> str:
        """The version that is pinned."""
        match = re.search(
            rf"^{self.name}(?:\[\w+\])?==(\S+)",
            (venvs.REQUIREMENTS / f"{self.name}.txt").read_text(),
            re.MULTILINE,
        )
        return match[1] if match else "unknown"

    @contextlib.contextmanager
    def serve(
        self,
        a_ms: float,
        b_ms: float,
        *,
        core: int,
        max_batch: int = 32,
        objective_ms: float = 0,
        second: int = 0,
    ) -> Iterator[processes.Server]:
        """Serve the bench's model with it, on one core.

        Args:
            a_ms: of the model.
            b_ms: of the model.
            core: which.
            max_batch: items.
            objective_ms: for answers; 0 for none.
            second: the port of its other protocol; 0 for one that nobody asks.

        Raises:
            NotInstalledError: Its environment could not be made.
            DidNotStartError: It gave no right answer in time.
        """
        python = venvs.ensure(self.name)
        port = processes.free_port()
        settings = {
            "BENCH_PORT": str(port),
            "BENCH_SECOND_PORT": str(second or processes.free_port()),
            "BENCH_A_MS": str(a_ms),
            "BENCH_B_MS": str(b_ms),
            "BENCH_MAX_BATCH": str(max_batch),
            "BENCH_OBJECTIVE_MS": str(int(objective_ms)),
        }
        command = [str(python), str(venvs.REQUIREMENTS / f"serve_{self.name}.py")]
        with processes.running(command, core=core, env=settings) as (process, log):
            server = processes.Server(port=port, pid=process.pid, path=self.path, form=self.form)
            processes.await_answer(server, process, log, seconds=self.start_seconds)
            yield server


@dataclasses.dataclass(frozen=True, slots=True)
class SidecarPeer:
    """A sidecar that batches, before the bench's own model.

    Args:
        name: of its profile.
        seconds: as in `Peer`.
        apart: as in `Peer`.
    """

    name: str
    seconds: float = 3
    apart: bool = True

    @property
    def label(self) -> str:
        """Its name in tables."""
        return foreign.read(self.name).label

    @property
    def version(self) -> str:
        """The version that is pinned."""
        return foreign.read(self.name).version.removeprefix("v")

    def ensure(self) -> None:
        """Build it where it is missing.

        Raises:
            NotInstalledError: it could not be built.
        """
        foreign.read(self.name).ensure()

    @contextlib.contextmanager
    def serve(
        self, a_ms: float, b_ms: float, *, core: int, max_batch: int = 32, objective_ms: float = 0
    ) -> Iterator[processes.Server]:
        """Serve the bench's model with it, both on one core; it does not support an objective.

        Raises:
            NotInstalledError: It could not be built.
            DidNotStartError: It gave no right answer in time.
        """
        with (
            processes.model(a_ms, b_ms, core=core) as model,
            foreign.read(self.name).serve(model, core=core, max_batch=max_batch) as server,
        ):
            yield server


PEERS: dict[str, Peer | SidecarPeer] = {
    peer.name: peer
    for peer in (
        SidecarPeer("kserve-agent"),
        Peer("mosec", "Mosec"),
        Peer("mlserver", "MLServer", "/v2/models/bench/infer", "v2"),
        Peer("litserve", "LitServe"),
        Peer("bentoml", "BentoML"),
        Peer("ray", "Ray Serve", start_seconds=120, seconds=10),
    )
}
