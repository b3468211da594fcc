"""The peers: how each is started and spoken to."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator

from bench import processes, venvs


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A server that batches.

    Args:
        name: of its files in this folder.
        label: how people write it.
        path: what predictions are posted to.
        form: a name in `bodies.FORMS`.
        start_seconds: how long its start may take.
        seconds: how long a closed loop must last that each connection is answered several times.
    """

    name: str
    label: str
    path: str = "/predict"
    form: str = "instances"
    start_seconds: float = 60
    seconds: float = 3

    @property
    def version(self) -> str:
        """The version that is pinned."""
        found = re.search(
            rf"^{self.name}(?:\[\w+\])?==(\S+)",
            (venvs.REQUIREMENTS / f"{self.name}.txt").read_text(),
            re.MULTILINE,
        )
        return found[1] if found else "unknown"

    @contextlib.contextmanager
    def serve(
        self, a_ms: float, b_ms: float, *, core: int, max_batch: int = 32, objective_ms: float = 0
    ) -> Iterator[processes.Server]:
        """Serve the bench's model with it, on one core.

        Raises:
            NotInstalledError: Its environment could not be made.
            DidNotStartError: It gave no right answer in time.
        """
        python = venvs.ensure(self.name)
        port = processes.free_port()
        told = {
            "BENCH_PORT": str(port),
            "BENCH_SECOND_PORT": str(processes.free_port()),
            "BENCH_A_MS": str(a_ms),
            "BENCH_B_MS": str(b_ms),
            "BENCH_MAX_BATCH": str(max_batch),
            "BENCH_OBJECTIVE_MS": str(int(objective_ms)),
        }
        command = [str(python), str(venvs.REQUIREMENTS / f"serve_{self.name}.py")]
        with processes.running(command, core=core, env=told) as (process, log):
            server = processes.Server(port=port, pid=process.pid, path=self.path, form=self.form)
            processes.await_answer(server, process, log, seconds=self.start_seconds)
            yield server


PEERS = {
    peer.name: peer
    for peer in (
        Peer("mosec", "Mosec"),
        Peer("mlserver", "MLServer", "/v2/models/bench/infer", "v2"),
        Peer("litserve", "LitServe"),
        Peer("bentoml", "BentoML"),
        Peer("ray", "Ray Serve", start_seconds=120, seconds=10),
    )
}
