"""Traffic on the cluster: rules, keys, mirrors, static answers and weights, the same in every router.

One endpoint with two routers of its own, each of which is asked by itself.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any, Self

import pytest

from bench.ledger import quantile
from tests.support.cluster.cluster_waits import heard, wait_for
from tests.support.cluster.k8s import (
    ROOT,
    Load,
    Namespace,
    assert_nothing_lost,
    endpoint,
    ledger_backend,
    ledger_code,
    split,
)
from tests.support.ledger.zero_loss import is_ready, pods_of, ready_pods, record, table, totals, wait_settled

ROUTERS = "app.kubernetes.io/name=penstock-dedicated-router"
ROUTER_PODS = 2
ADMIN_PORT = 8001
RULES = [{"header": "x-group", "value": "beta"}, {"cookie": "group", "prefix": "beta-"}]
IGNORED = ["$.predictions[*].pod", "$.predictions[*].batch"]
KEYS = [{"x-penstock-shard-key": f"user-{number}"} for number in range(60)]
WEIGHTS = (1, 10, 50, 100, 0)
"""Per cent of the requests that `new` gets, one after another."""
SECONDS_EACH = 1.0
DELETED = {10: "old", 100: "new"}
"""While these percentages are taken up, a pod of the backend is deleted."""
CHANGE = "change"

EXCHANGES = """
# The ids are none of the ledger's.
import asyncio, json, sys
import aiohttp
async def main():
    limit = asyncio.Semaphore(8)
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        async def exchange(number, url, headers):
            body = {"instances": [{"id": -1 - number}]}
            async with limit, session.post(url, json=body, headers=headers) as answer:
                return answer.status, dict(answer.headers), await answer.json(content_type=None)
        asked = enumerate(json.load(sys.stdin))
        return await asyncio.gather(*(exchange(number, url, headers) for number, (url, headers) in asked))
print(json.dumps(asyncio.run(main())))
"""

CLAIMS = """
import sys, urllib.request
fields = {"content-type": "application/json", "x-penstock-retry": "1"}
asked = urllib.request.Request(sys.argv[1], b'{"instances": [{"id": -1}]}', fields)
assert urllib.request.urlopen(asked).status == 200
"""

Answer = tuple[int, dict[str, str], Any]


class Routers:
    """The routers of an endpoint `e` of its own, each asked by itself."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.port = namespace.get("service", "e")["spec"]["ports"][0]["targetPort"]  # type: ignore[index]

    def addresses(self) -> list[str]:
        """Of the pods, by their names."""
        pods = sorted(pods_of(self._namespace, ROUTERS), key=lambda pod: str(pod["metadata"]["name"]))
        return [pod["status"]["podIP"] for pod in pods]

    def admin(self) -> list[str]:
        """Addresses of their admin ports."""
        return [f"{address}:{ADMIN_PORT}" for address in self.addresses()]

    def ask(self, *asked: dict[str, str]) -> list[list[Answer]]:
        """Send requests with these fields to each router; its answers, in their order."""
        said = []
        for address in self.addresses():
            url = f"http://{address}:{self.port}/predict"
            sent = json.dumps([(url, fields) for fields in asked])
            said.append([(status, names(fields), body) for status, fields, body in self._run(sent)])
        return said

    def _run(self, sent: str) -> list[Answer]:
        answers: list[Answer] = json.loads(self._namespace.run_python(EXCHANGES, input=sent))
        return answers


def names(fields: dict[str, str]) -> dict[str, str]:
    """Header fields by their names in lower case."""
    return {name.lower(): value for name, value in fields.items()}


def backends(answers: list[Answer]) -> Counter[str]:
    """Who answered: backends, or the reason of an error."""
    return Counter(
        fields["x-penstock-backend"] if status == 200 else str(body.get("reason"))
        for status, fields, body in answers
    )


def pods(answers: list[Answer]) -> list[str]:
    """Which pod answered each, by what its model says."""
    assert {status for status, _, _ in answers} == {200}, answers
    return [body["predictions"][0]["pod"] for _, _, body in answers]


def test_traffic_is_shared_alike_by_every_router_and_weights_change_without_loss(
    namespace: Namespace, load: Load, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Rules, keys, mirrors, static answers and missing backends; then a ledger through changes of weights."""
    asleep = {"minReplicas": 0, "maxReplicas": 1, "targetLoad": 4, "scaleToZero": {"after": "10s"}}
    made = [
        ledger_backend(
            name,
            collector=load.port,
            init_kwargs={"label": name},
            batching={"maxQueuedItems": 10_000},
            **spec,
        )
        for name, spec in (
            ("old", {"replicas": 2}),
            ("new", {"replicas": 1}),
            ("copied", {"replicas": 1}),
            ("asleep", {"replicas": 0, "autoscaling": asleep}),
        )
    ]
    shares = split("s", "e", {"old": 50, "new": 50})
    shares["spec"]["backends"][1]["match"] = RULES
    shares["spec"]["mirrors"] = [{"name": "copied", "compare": {"ignore": IGNORED}}, {"name": "asleep"}]
    own = {"router": {"dedicated": True, "replicas": ROUTER_PODS}, "coldStart": {"maxPending": 20_000}}
    affinity = {"cookie": {"name": "session"}}
    static = [{"path": "/healthz", "body": "well"}]
    namespace.apply(
        ledger_code(), *made, endpoint("e", "old", sessionAffinity=affinity, static=static, **own), shares
    )
    for name in ("old", "new", "copied"):
        namespace.wait_ready("modelbackend", name, seconds=240)
    namespace.wait_ready("modelendpoint", "e")
    namespace.wait_ready("trafficsplit", "s")
    wait_settled(namespace, ROUTER_PODS, ROUTERS)
    routers = Routers(namespace)

    no_shared_router_stands_idle(namespace)
    rules_come_before_weights(routers)
    kept = keys_stay(routers)
    a_router_field_counts_from_routers_alone(namespace)
    static_answers(namespace, routers)
    mirrors_are_seen_in_the_status_alone(namespace)
    restart(namespace)
    assert [pods(each) for each in routers.ask(*KEYS)] == [kept] * ROUTER_PODS
    a_missing_backend_fails_or_is_shared(namespace, routers)

    # Requests without a key from now on: their draw is exact.
    shares = split("s", "e", {"old": 100, "new": 0})
    shares["spec"] |= {"onMissing": "Share", "mirrors": []}
    namespace.apply(endpoint("e", "old", **own), shares)
    namespace.wait_ready("modelendpoint", "e")
    rate = float(request.config.getoption("--weights-rate"))
    rounds = int(request.config.getoption("--loss-rounds"))
    summary, seconds = through_weights(namespace, load, routers, rate=rate, rounds=rounds)
    took = quantiles(seconds)
    with capsys.disabled():
        print(f"\n{table(summary)}\nweights in effect in every router, s after they were written: {took}")
    shown = [part for part in summary["parts"] if part["name"] != CHANGE]
    record(
        request.config.getoption("--loss-results"),
        "weights",
        asked={"rate": rate, "rounds": rounds, "routers": ROUTER_PODS, "weights": WEIGHTS, "replicas": 2},
        result={
            "seconds_until_in_effect": took,
            "observed": [{"weight": int(part["name"]), **part["backends"]} for part in shown],
            **totals(summary | {"parts": shown}),
        },
    )
    assert_nothing_lost(summary)
    for part in shown:
        assert_share(int(part["name"]) / 100, part["backends"])
    shares_are_exact(namespace, load)
    an_objective_that_cannot_be_kept_is_seen(namespace)


def no_shared_router_stands_idle(namespace: Namespace) -> None:
    """The only endpoint has routers of its own."""
    shared = namespace.get("deployment", "penstock-router") or {}
    assert shared["spec"]["replicas"] == 0


def rules_come_before_weights(routers: Routers) -> None:
    """In every router, whatever the weights and the key; all others are shared."""
    beta = [{"x-group": "beta"}, {"cookie": "a=b; group=beta-7", "x-penstock-shard-key": "k"}] * 10
    assert [backends(each) for each in routers.ask(*beta)] == [{"new": 20}] * ROUTER_PODS
    others = [{"x-group": "alpha", "cookie": f"session={number}"} for number in range(100)]
    for answers in routers.ask(*others):
        assert set(backends(answers)) == {"old", "new"}, backends(answers)


def keys_stay(routers: Routers) -> list[str]:
    """One pod for a key, and for the cookie that a router set, in every router; the pods of KEYS."""
    first, *rest = (pods(each) for each in routers.ask(*KEYS))
    assert rest == [first] * (ROUTER_PODS - 1)
    assert len(set(first)) == 3
    answers = [answer for (answer,) in routers.ask({})]
    cookies = [fields["set-cookie"].partition(";")[0] for _, fields, _ in answers]
    again = routers.ask(*[{"cookie": cookie} for cookie in cookies])
    assert [pods(each) for each in again] == [pods(answers)] * ROUTER_PODS
    return first


def a_router_field_counts_from_routers_alone(namespace: Namespace) -> None:
    """`x-penstock-retry` says that another pod has counted the request; a pod that is not a router sends it.

    The pod that is asked has received such fields from a router before, with a key.
    """
    (asked, *_), (sender,) = (pods_of(namespace, f"penstock.dev/backend={name}") for name in ("old", "new"))
    address = asked["status"]["podIP"]

    def arrived() -> float:
        text = namespace.curl(f"http://{address}:8013/metrics")[2]
        return float(text.split("\npenstock_sidecar_arrived_items_total ")[1].split()[0])

    before = arrived()
    in_model = ("exec", sender["metadata"]["name"], "-c", "model", "--", "python", "-c")
    namespace.kubectl(*in_model, CLAIMS, f"http://{address}:8012/predict")
    assert arrived() == before + 1


def static_answers(namespace: Namespace, routers: Routers) -> None:
    """Of the router's own, asked of no model."""
    for address in routers.addresses():
        status, fields, body = namespace.curl(f"http://{address}:{routers.port}/healthz")
        assert (status, body, fields.get("x-penstock-backend")) == (200, "well", None)


def mirrors_are_seen_in_the_status_alone(namespace: Namespace) -> None:
    """What was compared is in the status; a mirror at zero stays there. No answer so far was of either."""

    def compared() -> dict[str, dict[str, Any]]:
        status = (namespace.get("trafficsplit", "s") or {})["status"]
        mirrors = {each["name"]: each for each in status.get("mirrors") or ()}
        return mirrors if mirrors.get("copied", {}).get("mismatchedPercent") else {}

    mirrors = wait_for("what copies have come to", compared)
    assert mirrors["copied"]["mismatchedPercent"] == "100"
    assert mirrors["copied"]["firstDifference"] == "$.predictions[0].label (value: string → string)"
    assert mirrors["asleep"]["sent"] == 0
    assert mirrors["asleep"]["dropped"] > 0
    backend = namespace.get("modelbackend", "asleep") or {}
    assert (backend["spec"]["replicas"], pods_of(namespace, "penstock.dev/backend=asleep")) == (0, [])


def a_missing_backend_fails_or_is_shared(namespace: Namespace, routers: Routers) -> None:
    """`onMissing`: the keys of a backend that does not exist go to the other, or get an error."""
    for policy, reasons in (("Share", {"old"}), ("Fail", {"old", "backend_missing"})):
        shares = split("s", "e", {"old": 50, "nobody": 50})
        shares["spec"] |= {"onMissing": policy, "mirrors": []}
        namespace.apply(shares)
        wait_for(
            f"{policy} in every router",
            lambda: all(set(backends(each)) == reasons for each in routers.ask(*KEYS)),  # noqa: B023
        )


def through_weights(
    namespace: Namespace, load: Load, routers: Routers, *, rate: float, rounds: int
) -> tuple[dict[str, Any], list[float]]:
    """Requests all along, while `new` gets WEIGHTS for a second each; in each round a pod of each is deleted.

    That of `new` is its only one, while it has all requests: these are held for its successor.

    Returns:
        The ledger, in whose parts each weight has the name of its percentage, once the status says that all
        routers have it; and the seconds from the writing of each weight until the last router had it.
    """
    path = f"/apis/penstock.dev/v1alpha1/namespaces/{namespace.name}/trafficsplits/s"
    api = namespace.cluster.api()
    written: list[tuple[float, dict[str, int]]] = []

    def write(weights: dict[str, int]) -> bool:
        _, live = api.request("GET", path)
        for share in live["spec"]["backends"]:
            share["weight"] = weights[share["name"]]
        at = time.monotonic()
        status, answer = api.request("PUT", path, live)
        assert status in (200, 409), answer  # 409: its status was written meanwhile
        if status == 200:
            written.append((at, weights))
        return bool(status == 200)

    def in_effect(weights: dict[str, int]) -> bool:
        _, live = api.request("GET", path)
        heard("split", live)
        said = {each["name"]: (each["desired"], each.get("applied")) for each in live["status"]["weights"]}
        return said == {name: (weight, weight) for name, weight in weights.items()}

    wait_for("the first weights", lambda: in_effect({"old": 100, "new": 0}))
    load.start(namespace.url("e"), rate=rate)
    load.mark(CHANGE)
    with SettingsWatch(namespace, "e", routers.admin()) as watch:
        for _ in range(rounds):
            for percent in WEIGHTS:
                weights = {"old": 100 - percent, "new": percent}
                wait_for("the weights to be written", lambda: write(weights), every=0.01)  # noqa: B023
                if percent in DELETED:
                    pod = ready_pods(namespace, f"penstock.dev/backend={DELETED[percent]}")[0]
                    api.request("DELETE", f"/api/v1/namespaces/{namespace.name}/pods/{pod}")
                wait_for("the weights in every router", lambda: in_effect(weights))  # noqa: B023
                begun = load.mark(str(percent))["answered"]
                enough = begun + rate * SECONDS_EACH
                wait_for("some requests", lambda: load.mark(str(percent))["answered"] >= enough)  # noqa: B023
                # All that is sent within the part is answered by its weights, however slow the machine is.
                wait_for("the answers to all of them", lambda: not load.mark(CHANGE)["earlier"])
            for name, count in (("old", 2), ("new", 1)):
                wait_settled(namespace, count, f"penstock.dev/backend={name}")
    summary = load.stop()
    ends = [(at, watch.last_router(weights, at)) for at, weights in written]
    return summary, [end - at for at, end in ends if end is not None]


def shares_are_exact(namespace: Namespace, load: Load) -> None:
    """Of 4000 requests, weights of 90 and 10 give 3600 and 400, each within 2 a router."""
    namespace.apply(split("s", "e", {"old": 90, "new": 10}))
    namespace.wait_ready("trafficsplit", "s")
    wanted = [("old", 90, 90), ("new", 10, 10)]

    def taken_up() -> bool:
        status = (namespace.get("trafficsplit", "s") or {})["status"]
        return [(each["name"], each["desired"], each.get("applied")) for each in status["weights"]] == wanted

    wait_for("the weights in every router", taken_up)
    load.start(namespace.url("e"), rate=400, count=4000)
    summary = load.finish(seconds=300)
    assert_nothing_lost(summary)
    assert abs(summary["backends"]["new"] - 400) <= 2 * ROUTER_PODS, summary["backends"]
    assert summary["backends"]["old"] + summary["backends"]["new"] == 4000


def an_objective_that_cannot_be_kept_is_seen(namespace: Namespace) -> None:
    """Ready stays True, for the pods serve, and says it; the columns show what was refused, and why."""
    namespace.patch("modelbackend", "old", {"spec": {"batching": {"latencyObjective": "1ms"}}})
    url = namespace.url("e")

    def refuses() -> dict[str, Any] | None:
        namespace.ask(url, [{"id": -1}] * 64)
        status = (namespace.get("modelbackend", "old") or {})["status"]
        seen = namespace.condition("modelbackend", "old", "Ready")["reason"] == "ObjectiveUnreachable"
        return status if seen and status["load"].get("refusedPerMinute") else None

    wait_for("refusals, and their reason", refuses)
    ready = namespace.condition("modelbackend", "old", "Ready")
    assert ready["status"] == "True"
    assert "latencyObjective is 1ms, but a batch of one item takes" in ready["message"]
    head, row = namespace.kubectl("get", "modelbackend", "old", "-o", "wide").splitlines()
    assert {"REASON", "REFUSED", "FAILED", "RESTARTS", "ERRORS"} <= set(head.split())
    assert "ObjectiveUnreachable" in row
    command = [*(sys.executable, "-m", "penstock_cli", "status", "-n", namespace.name)]
    command += ["--kubeconfig", str(namespace.cluster.host_kubeconfig)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (line,) = [each for each in shown if each.startswith("ModelBackend/old ")]
    assert "ObjectiveUnreachable" in line
    assert " refused of " in " ".join(shown)


class SettingsWatch:
    """Notes when each router takes up weights; a context manager."""

    def __init__(self, namespace: Namespace, endpoint_name: str, addresses: list[str]) -> None:
        self._routers = len(addresses)
        self._seen: list[dict[str, Any]] = []
        command = [
            *namespace.cluster.exec_prefix,
            sys.executable,
            "-m",
            "tests.support.cluster.settings_watch",
        ]
        self._process = subprocess.Popen(
            [*command, endpoint_name, *addresses],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._seen.extend(json.loads(line) for line in self._process.stdout)

    def last_router(self, weights: dict[str, int], since: float) -> float | None:
        """When the last router took up weights that were written then; None where one was not seen to."""
        first: dict[str, float] = {}
        for seen in self._seen:
            if seen["at"] > since and seen["weights"] == weights:
                first.setdefault(seen["router"], seen["at"])
        return max(first.values()) if len(first) == self._routers else None

    def __enter__(self) -> Self:
        def looks() -> bool:
            return len({seen["router"] for seen in self._seen}) == self._routers

        wait_for("a look at every router", looks)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._reading.join()
        self._process.stdout.close()
        self._process.wait()


def quantiles(seconds: list[float]) -> dict[str, float]:
    """How long it took: the number of changes, and of their times median, 99 of 100 and the longest."""
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {"n": len(ordered)} | {name: round(quantile(ordered, share), 3) for name, share in shares.items()}


def assert_share(share: float, answered: dict[str, int]) -> None:
    """No answer by a backend without a weight; else within three standard deviations of a drawn lot.

    The draw is exact, so that each router is within 2 requests of its share: of few requests, that counts.
    """
    assert set(answered) <= {"old", "new"}, answered
    count, new = sum(answered.values()), answered.get("new", 0)
    most = max(3 * math.sqrt(count * share * (1 - share)), 2 * ROUTER_PODS if 0 < share < 1 else 0)
    assert abs(new - count * share) <= most, (share, answered)


def restart(namespace: Namespace) -> None:
    """Kill both routers, and wait until they are ready again."""
    restarts = {}
    for pod in pods_of(namespace, ROUTERS):
        name = pod["metadata"]["name"]
        restarts[name] = pod["status"]["containerStatuses"][0]["restartCount"]
        namespace.cluster.kill_container(namespace.name, name, "router")

    def restarted() -> bool:
        return all(
            is_ready(pod)
            and pod["status"]["containerStatuses"][0]["restartCount"] > restarts[pod["metadata"]["name"]]
            for pod in pods_of(namespace, ROUTERS)
        )

    wait_for("both routers after their restart", restarted)
