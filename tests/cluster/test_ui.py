"""The page of `kubectl penstock ui` on a real cluster: what pods and routers measure, and a call from it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from devcluster.network import FIRST
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Load, Namespace, endpoint, ledger_backend, ledger_code, split
from tests.support.cluster.ui import UserPage, user_page
from tests.support.processes.browser import devtools, findings, picture, run_in
from tests.support.processes.slow_bucket import slow_bucket

STEPS = [{"setWeight": 30}, {"pause": "Manual"}, {"setWeight": 60}]
PICTURES = {
    "overview": ("#/", ".rows > li"),
    "backend": ("#/ModelBackend/{}/stable", "[data-panel=batches]:not([hidden])"),
    "endpoint": ("#/ModelEndpoint/{}/e", "svg[aria-label*=p99]"),
    "release": ("#/TrafficSplit/{}/s", ".steps"),
}


def test_what_runs_what_waits_and_a_release(
    namespace: Namespace, load: Load, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    backends = [
        ledger_backend(name, collector=load.port, init_kwargs={"delay_ms": 20.0, "label": name})
        for name in ("stable", "candidate", "shadow")
    ]
    release = split("s", "e", {"stable": 100, "candidate": 0})
    release["spec"]["strategy"] = {
        "stable": "stable",
        "candidate": "candidate",
        "steps": STEPS,
        "analysis": {"interval": "5s", "metrics": [{"name": "errorRatio"}]},
    }
    compared = {"ignore": ["$.predictions[*].pod", "$.predictions[*].batch"], "showValues": True}
    release["spec"]["mirrors"] = [{"name": "shadow", "percent": 20, "compare": compared}]
    backends[0]["spec"]["autoscaling"] = {"targetLoad": 2, "maxReplicas": 2}
    broken = ledger_backend("broken", collector=load.port, image="localhost/penstock/nothing:1")
    coming = ledger_backend("coming", collector=load.port)
    coming["spec"]["model"]["artifact"] = {"uri": "s3://weights/large.bin", "secretRef": {"name": "reader"}}
    with slow_bucket(FIRST.address, prefix=namespace.cluster.exec_prefix) as bucket:
        keys = {"AWS_ENDPOINT_URL": bucket, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "reader"}, "stringData": keys}
        namespace.apply(ledger_code(), secret, *backends, broken, coming, endpoint("e", "stable"), release)
        for name in ("stable", "candidate", "shadow"):
            namespace.wait_ready("modelbackend", name)
        namespace.wait_ready("modelendpoint", "e")
        load.start(namespace.url("e"), rate=120)
        seen_by_a_browser(namespace, tmp_path, Path(pytestconfig.getoption("--pictures") or tmp_path))
    load.stop()


def seen_by_a_browser(namespace: Namespace, tmp_path: Path, folder: Path) -> None:
    """What the page shows of that, with a picture of each view; then the release is taken back from it."""
    with user_page(namespace, tmp_path) as url:
        page, where = UserPage(url), namespace.name

        def backend() -> bool:
            view = page.view("ModelBackend", where, "stable")
            sizes = [pod.get("size") for pod in view["pods"]]
            return bool(view["batches"]["bounds"] and view["curve"] and view["terms"] and any(sizes))

        def scaled() -> bool:
            view = page.view("ModelBackend", where, "stable")
            return bool(view["changes"]) and view["replicas"]["ready"] == 2

        def failing() -> bool:
            row = page.ask("api/overview")["rows"][f"ModelBackend/{where}/broken"]
            notes = {note["reason"]: note for note in row["notes"]}
            return "imagePullSecrets" in notes.get("ImagePullFailed", {"remedy": ""})["remedy"]

        def coming() -> bool:
            row = page.ask("api/overview")["rows"][f"ModelBackend/{where}/coming"]
            notes = {note["reason"]: note["message"] for note in row["notes"]}
            return " of 2 GB, " in notes.get("Downloading", "")

        def routed() -> bool:
            flows = {each["name"]: each for each in page.view("ModelEndpoint", where, "e")["flows"]}
            shadow = flows.pop("shadow", {})
            copied = shadow.get("rate") and shadow["difference"].startswith("$.predictions[0].label")
            copied = copied and shadow["difference"].endswith(' → "shadow")')
            return copied and len(flows) == 2 and all(each["rate"] and each["p50"] for each in flows.values())

        def paused() -> bool:
            view = page.view("TrafficSplit", where, "s")
            waits = view["pill"] == ["wait", "Waits for a user"]
            return waits and view["release"]["verdicts"][0]["passPercent"] is not None

        wait_for("all kinds to be read", lambda: page.ask("api/overview")["listed"])
        wait_for("batches, a service curve, the autoscaler's terms and a queue of a pod", backend)
        wait_for("a backend that cannot start, and why", failing)
        wait_for("a second pod", scaled)
        wait_for("a release that waits for a user", lambda: scaled() and paused())
        wait_for("rates and latencies by backend, and what copies come to", routed)
        wait_for("a download in progress", coming)
        answer = page.ask(
            f"api/try/{where}/e", {"path": "/predict", "body": '{"instances": [{"id": "page"}]}'}
        )
        assert answer["status"] == 200, answer
        assert "batch" in answer["timing"]
        for name, image in asyncio.run(looked_at(url, where, tmp_path / "browser")).items():
            assert len(image) > 10_000, name
            (tmp_path if "phone" in name else folder).joinpath(f"ui-{name}.png").write_bytes(image)
        said = page.ask(f"api/steer/{where}/s", {"verb": "abort"})
        assert said["said"].startswith(f"{where}/s: stable gets all requests, candidate none")
        wait_for("the release taken back", lambda: not paused())


async def looked_at(url: str, namespace: str, profile: Path) -> dict[str, bytes]:
    """A picture of each view, without an error in the browser or a serious finding of axe, light and dark.

    On a phone it is not wider than that.
    """
    made = {}
    async with devtools(url, profile) as call:
        # NB: the page is there once it has rows: it takes its token from the hash that is changed below.
        watched = """const pause = () => new Promise(done => setTimeout(done, 50));
            while (!document.querySelector(".rows > li")) await pause();
            window.faults = [];
            addEventListener("error", event => faults.push(event.message));"""
        while "result" not in await run_in(call, watched):
            pass
        for name, (place, wanted) in PICTURES.items():
            said = await run_in(
                call,
                f"""location.hash = {place.format(namespace)!r};
                const pause = time => new Promise(done => setTimeout(done, time));
                while (!document.querySelector({wanted!r})) await pause(100);
                await pause(3000);
                return window.faults;""",
            )
            assert said["result"]["result"]["value"] == [], said
            for scheme in ("dark", "light"):
                assert await findings(call, scheme) == [], (name, scheme)
            made[name] = await picture(call, 1100)
            made[f"{name}-phone"] = await picture(call, 390, scheme="dark")
            wide = await run_in(call, "return document.documentElement.scrollWidth")
            assert wide["result"]["result"]["value"] == 390, name
            await call("Emulation.clearDeviceMetricsOverride")
    return made
