"""Other projects' autoscalers on the same simulated pods: Knative's, Kubernetes' HPA and Ray Serve's.

Each is their own code in a process of its own, which is asked once a simulated second: two Go programs
(`devcluster/go/knative-autoscaler`, `devcluster/go/hpa`) and a Python program around Ray's wheel
(`bench/peers/serve_ray_autoscaler.py`). What they see is at least as good as what they have on a cluster: no
metric is lost, or older than a second where their own clocks do not make it so.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from bench import venvs
from bench.autoscaling.policies import MOST
from bench.autoscaling.simulator import Seen
from bench.peers.catalogue import PEERS
from devcluster import programs

_RATE_S = 60.0
"""Seconds over which a rate is taken, as `rate(...[1m])` is in Prometheus."""


class PeerError(Exception):
    """A peer's program ended; says what it wrote last."""


class Peer:
    """An autoscaler in another process.

    Args:
        command: its program.
        settings: the first line that it reads.
        describe: what it is sent at each look.
    """

    interval = 1.0

    def __init__(
        self,
        command: list[str],
        settings: Mapping[str, Any],
        describe: Callable[[Seen], Mapping[str, Any]],
    ) -> None:
        self._describe = describe
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self._write(settings)

    def look(self, seen: Seen) -> int:
        """See `Policy`."""
        self._write(self._describe(seen))
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(self._last_words())
        return min(max(int(line), 1), MOST)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=30)
        self._log.close()

    def _write(self, document: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(document) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(self._last_words()) from None

    def _last_words(self) -> str:
        self._process.wait(timeout=30)
        self._log.seek(0)
        return f"{self._process.args!r} ended: {self._log.read().decode()[-800:]}"


def _load(seen: Seen) -> dict[str, int]:
    """Items by pod that is ready and reports."""
    return {pod.name: int(pod.samples[-1].load) for pod in seen.pods if pod.ready and pod.samples}


def _held(seen: Seen) -> int:
    return sum(router.held(seen.now) for router in seen.holds)


def _to_knative(seen: Seen) -> dict[str, Any]:
    ready = sum(pod.ready for pod in seen.pods)
    return {"at": seen.now, "ready": ready, "concurrency": seen.inside, "arrived": seen.arrived}


class _ToHpa:
    """What an adapter of a metrics server makes of the pods' metrics."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[float, int]] = deque()

    def __call__(self, seen: Seen) -> dict[str, Any]:
        arrived = self._arrived
        arrived.append((seen.now, seen.arrived))
        while arrived[0][0] <= seen.now - _RATE_S:
            arrived.popleft()
        rate = sum(count for _, count in arrived) / min(_RATE_S, seen.now)
        load = _load(seen)
        pods = {
            pod.name: {"ready": pod.ready} | ({"load": load[pod.name]} if pod.name in load else {})
            for pod in seen.pods
            if not pod.left
        }
        return {
            "at": seen.now,
            "replicas": seen.current,
            "external": {"load": sum(load.values()) + _held(seen), "arrivals": rate},
            "pods": pods,
        }


def _to_ray(seen: Seen) -> dict[str, Any]:
    ready = _load(seen) | {pod.name: 0 for pod in seen.pods if pod.ready and not pod.samples}
    return {"at": seen.now, "replicas": seen.current, "held": _held(seen), "ready": ready}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A peer with its settings but one: the target, which trades pods for misses.

    Args:
        peer: its name.
        name: of the settings.
        target: items, or items a second, that one pod is to have: what the peer's documentation leads to.
        start: starts it with a target.
    """

    peer: str
    name: str
    target: float
    start: Callable[[float], Peer]

    @property
    def key(self) -> str:
        """Its name in results."""
        return f"{self.peer}, {self.name}"

    @contextlib.contextmanager
    def running(self, target: float) -> Iterator[Peer]:
        """The peer, until the end of the block.

        Args:
            target: as in `Setting`.
        """
        peer = self.start(target)
        try:
            yield peer
        finally:
            peer.close()


def _knative(target: float, **annotations: str) -> Peer:
    settings = {
        f"autoscaling.knative.dev/{name.replace('_', '-')}": value
        for name, value in {"target": f"{target:.2f}", **annotations}.items()
    }
    program = programs.program("knative-autoscaler", "knative-autoscaler")
    return Peer([str(program)], settings, _to_knative)


_BEHAVIOR = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 15},
            {"type": "Pods", "value": 4, "periodSeconds": 15},
        ],
    },
    "scaleDown": {
        "stabilizationWindowSeconds": 300,
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
    },
}
"""The defaults that Kubernetes documents."""


def _hpa(target: float, *, kind: str, metric: str) -> Peer:
    source = {
        "metric": {"name": metric},
        "target": {"type": "AverageValue", "averageValue": f"{1000 * target:.0f}m"},
    }
    spec = {
        "minReplicas": 1,
        "maxReplicas": MOST,
        "metrics": [{"type": kind, kind.lower(): source}],
        "behavior": _BEHAVIOR,
    }
    return Peer([str(programs.program("hpa", "hpa"))], spec, _ToHpa())


def _ray(target: float, **settings: float) -> Peer:
    config = {"min_replicas": 1, "max_replicas": MOST, "target_ongoing_requests": target, **settings}
    command = [str(venvs.ensure("ray")), str(venvs.REQUIREMENTS / "serve_ray_autoscaler.py")]
    return Peer(command, config, _to_ray)


SETTINGS = (
    Setting(peer="Knative", name="concurrency", target=42, start=_knative),
    Setting(peer="Knative", name="rps", target=42, start=lambda target: _knative(target, metric="rps")),
    Setting(
        peer="Knative",
        name="rps, scale-down-delay 5m",
        target=42,
        start=lambda target: _knative(target, metric="rps", scale_down_delay="5m"),
    ),
    Setting(
        peer="HPA",
        name="load of pods",
        target=25,
        start=lambda target: _hpa(target, kind="Pods", metric="load"),
    ),
    Setting(
        peer="HPA",
        name="arrivals a second",
        target=34,
        start=lambda target: _hpa(target, kind="External", metric="arrivals"),
    ),
    Setting(peer="Ray Serve", name="default delays", target=25, start=_ray),
    Setting(
        peer="Ray Serve",
        name="quick",
        target=25,
        start=lambda target: _ray(
            target, upscale_delay_s=3, look_back_period_s=10, metrics_interval_s=2, downscale_delay_s=300
        ),
    ),
)
"""A pod answers 42 items a second at most within the objective, and then has 42 items: Knative uses 70 % of a
target by its own default. At 80 % of that rate it has 25."""


def ensure() -> None:
    """Build and install what is missing.

    Raises:
        DevclusterError: a Go program could not be built.
        NotInstalledError: Ray could not be installed.
    """
    programs.ensure("knative-autoscaler", "hpa")
    venvs.ensure("ray")


def versions() -> dict[str, str]:
    """The pinned version of each peer."""
    return {
        "Knative": programs.COMPONENTS["knative-autoscaler"].version,
        "HPA": programs.COMPONENTS["hpa"].version,
        "Ray Serve": PEERS["ray"].version,
    }
