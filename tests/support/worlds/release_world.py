"""Pods, routers and clients around an operator in memory that takes a release through its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock_operator.kinds import BACKEND, DEPLOYMENT, POD, SPLIT
from penstock_wire.control.report import (
    FIRST_BYTE_SECONDS,
    BackendTotals,
    Difference,
    EndpointReport,
    MirrorTotals,
    RouterReport,
)
from tests.support.worlds.operator_harness import Harness, backend, endpoint, settings

Obj = dict[str, Any]
_OF_ITSELF = ("Applied", "Waiting", "RouterStarting", "NoReports", "BackendMissing", "Accepted")
BUCKETS = len(FIRST_BYTE_SECONDS) + 1


@dataclass(slots=True, kw_only=True)
class Behaviour:
    """How a backend answers.

    Args:
        errors: the share of its answers that fail.
        differing: the share of its answers to copies that differ.
    """

    errors: float = 0.0
    differing: float = 0.0
    seconds: float = 0.02


def split(name: str = "s", endpoint_name: str = "e", **strategy: Any) -> Obj:
    """A split with a strategy from `old` to `new`."""
    shares = [{"name": "old", "weight": 100}, {"name": "new", "weight": 0}]
    made = {"stable": "old", "candidate": "new", "steps": [{"setWeight": 10}, {"setWeight": 50}]} | strategy
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TrafficSplit",
        "metadata": {"namespace": "n", "name": name},
        "spec": {"endpoint": endpoint_name, "backends": shares, "strategy": made},
    }


@dataclass(slots=True)
class World:
    """A namespace with an endpoint, two backends, a router, and so many requests a second.

    Args:
        rate: requests a second.
        most: pods of a backend that find a node.
        reports: whether the router reports.
        silent: routers beside it that are ready and never report.
        router: its Deployment: that of the namespace or the endpoint's own.
        uncopied: why no copy is sent, in words; empty where they are.
        history: the statuses of the split, a second after the other, once they have a release.
    """

    harness: Harness
    rate: int = 200
    behaviour: dict[str, Behaviour] = field(default_factory=lambda: {"old": Behaviour(), "new": Behaviour()})
    most: dict[str, int] = field(default_factory=dict)
    reports: bool = True
    silent: int = 0
    router: str = "penstock-router"
    uncopied: str = ""
    history: list[Obj] = field(default_factory=list)
    _document: Obj | None = None
    _requests: Counter[str] = field(default_factory=Counter)
    _errors: Counter[str] = field(default_factory=Counter)
    _seconds: dict[str, list[int]] = field(default_factory=dict)
    _copies: Counter[str] = field(default_factory=Counter)
    _differing: Counter[str] = field(default_factory=Counter)
    _debts: Counter[str] = field(default_factory=Counter)
    _seq: int = 0

    @classmethod
    async def of(
        cls, resource: Obj, *, replicas: Mapping[str, int] | None = None, dedicated: bool = False, **spec: Any
    ) -> World:
        """A world in which all is ready, before the split is applied."""
        harness = Harness()
        count = {"old": 2, "new": 2} | dict(replicas or {})
        harness.apply(endpoint(backend="old", **({"router": {"dedicated": True}} if dedicated else {})))
        for name in ("old", "new"):
            harness.apply(backend(name, **({"replicas": count[name]} | spec.get(name, {}))))
        world = cls(harness, router="e-dedicated-router" if dedicated else "penstock-router")
        for _ in range(3):
            await world.second()
        await harness.applied(resource)
        return world

    # -- what there is -------------------------------------------------------------------------------------

    @property
    def split(self) -> Obj:
        """The split as it is stored."""
        return self.harness.cluster.find(SPLIT, "n", "s")

    @property
    def release(self) -> Obj:
        """Its `status.release`, empty for none."""
        return dict((self.split.get("status") or {}).get("release") or {})

    @property
    def weights(self) -> dict[str, int]:
        """What the settings document has."""
        (served,) = settings(self.harness, f"{self.router}-settings")["endpoints"]
        return {share["name"]: share["weight"] for share in served["backends"]}

    def standing(self) -> tuple[str, int, str]:
        """Phase, weight and reason of the release."""
        release = self.release
        return release["phase"], release["weight"], release["reason"]

    def ready(self, name: str) -> int:
        """Ready pods of a backend."""
        return sum(
            pod.rpartition("-")[0] == f"{name}-backend" for pod in self.harness.cluster.names(POD, "n")
        )

    def events(self) -> list[tuple[str, str]]:
        """Reason and note of the split's Events, in their order, without those of any split."""
        return [
            (event["reason"], event["note"])
            for (kind, _, _), event in self.harness.cluster.objects.items()
            if kind == "Event" and event["regarding"]["name"] == "s" and event["reason"] not in _OF_ITSELF
        ]

    # -- what happens --------------------------------------------------------------------------------------

    async def second(self) -> None:
        """A second of requests passes, and the router reports."""
        await self._kubelet()
        self._serve()
        self._report()
        for pod in self.harness.cluster.names(POD, "n"):
            name = pod.partition("-backend-")[0]
            if (BACKEND.kind, "n", name) in self.harness.cluster.objects:
                version = settings(self.harness, f"{name}-backend-settings")["version"]
                self.harness.report(name, pod, version=version)
        await self.harness.turn(1)
        status = self.split.get("status") if self._applied else None
        if status and "release" in status:
            self.history.append(status)

    @property
    def _applied(self) -> bool:
        return (SPLIT.kind, "n", "s") in self.harness.cluster.objects

    async def until(self, held: Callable[[World], bool], seconds: int = 300) -> int:
        """Seconds pass until something holds; how many."""
        for passed in range(seconds):
            if held(self):
                return passed
            await self.second()
        raise AssertionError(f"not within {seconds} s: {self.split.get('status')}")

    async def phase(self, phase: str, seconds: int = 300) -> int:
        """Seconds pass until the release has come to a phase; how many."""
        return await self.until(lambda world: world.release.get("phase") == phase, seconds)

    async def reason(self, reason: str, seconds: int = 300) -> int:
        """Seconds pass until the release has a reason; how many."""
        return await self.until(lambda world: world.release.get("reason") == reason, seconds)

    def annotate(self, action: str) -> None:
        """Somebody asks for something."""

        def asked(obj: Obj) -> None:
            obj["metadata"].setdefault("annotations", {})["penstock.dev/release"] = action

        self.harness.cluster.edit(SPLIT, "n", "s", asked)

    async def restart(self) -> None:
        """Another operator takes over."""
        self.harness = await self.harness.restart()

    async def _kubelet(self) -> None:
        """Deployments get the pods that they ask for, as far as there are nodes."""
        cluster = self.harness.cluster
        for name in cluster.names(DEPLOYMENT, "n"):
            wanted = cluster.find(DEPLOYMENT, "n", name)["spec"]["replicas"]
            if name == self.router:
                wanted = 1 + self.silent
            wanted = min(wanted, self.most.get(name.removesuffix("-backend"), wanted))
            there = sum(pod.startswith(f"{name}-") for pod in cluster.names(POD, "n"))
            status = cluster.find(DEPLOYMENT, "n", name).get("status") or {}
            if there != wanted or status.get("readyReplicas", 0) != wanted:
                self.harness.pods_ready(name, wanted)
        gone = [
            pod for pod in cluster.names(POD, "n")
            if (DEPLOYMENT.kind, "n", pod.rpartition("-")[0]) not in cluster.objects
        ]  # fmt: skip
        for pod in gone:
            cluster.remove(POD, "n", pod)
        await self.harness.run()

    def _serve(self) -> None:
        """The router shares a second's requests by the document that it has taken up."""
        if self._document is None or not self._document["endpoints"]:
            return
        (served,) = self._document["endpoints"]
        weights = {share["name"]: share["weight"] for share in served["backends"]}
        whole = sum(weights.values())
        for name, weight in weights.items():
            count = self._drawn(f"requests {name}", self.rate * weight / whole)
            behaviour = self.behaviour[name]
            self._requests[name] += count
            self._errors[name] += self._drawn(f"errors {name}", count * behaviour.errors)
            place = next(at for at, edge in enumerate(FIRST_BYTE_SECONDS) if edge >= behaviour.seconds)
            self._seconds.setdefault(name, [0] * BUCKETS)[place] += count
        for mirror in served.get("mirrors") or ():
            name = mirror["name"]
            copies = self._drawn(f"copies {name}", self.rate * mirror["percent"] / 100)
            self._copies[name] += copies
            self._differing[name] += self._drawn(f"differing {name}", copies * self.behaviour[name].differing)

    def _drawn(self, what: str, expected: float) -> int:
        """A whole number whose sum stays beside the expected one, as the router's draw has it."""
        self._debts[what] += expected  # type: ignore[assignment]
        count = int(self._debts[what] + 1e-9)
        self._debts[what] -= count
        return count

    def _report(self) -> None:
        cluster = self.harness.cluster
        name = f"{self.router}-0"
        if not self.reports or name not in cluster.names(POD, "n"):
            return
        self._seq += 1
        ends = EndpointReport(
            listening=True,
            backends={
                name: BackendTotals(
                    requests=count,
                    codes={"200": count - self._errors[name], "500": self._errors[name]},
                    errors=self._errors[name],
                    seconds=tuple(self._seconds[name]),
                )
                for name, count in self._requests.items()
            },
            mirrors={
                name: MirrorTotals(dropped={"refused": count}, causes={"refused": self.uncopied})
                if self.uncopied
                else MirrorTotals(
                    sent=count,
                    compared=count,
                    answered=count,
                    differing={"value": self._differing[name]},
                    first=(_difference(self._differing[name]),) if self._differing[name] else (),
                )
                for name, count in self._copies.items()
            },
        )
        report = RouterReport(
            pod=name, uid=self.harness.uid(POD, name), seq=self._seq, state="ready",
            settings_version=0 if self._document is None else self._document["version"],
            endpoints={"e": ends},
        )  # fmt: skip
        dedicated = "e" if name.startswith("e-") else ""
        news = self.harness.ctx.reports.router("n", report, endpoint=dedicated)
        self.harness.manager.reported("n", "", notable=news.notable)
        self._document = settings(self.harness, f"{self.router}-settings")  # the answer to the report

    async def delete(self, name: str) -> None:
        """Somebody deletes a backend."""
        self.harness.cluster.remove(BACKEND, "n", name)
        self.harness.cluster.collect_garbage()
        await self.harness.run()


def _difference(count: int) -> Difference:
    return Difference(path="$.p", kind="value", expected="number", found="number", count=count)
