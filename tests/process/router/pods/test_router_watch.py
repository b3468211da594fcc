"""Pods from EndpointSlices by list and watch, through everything that happens to a watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock_router.pods.api_server import ApiServer
from tests.support.processes.fake_apiserver import FakeApiServer, endpoint_of, endpoint_slice
from tests.support.processes.router_process import RouterProcess, backend, endpoint, until


@pytest.fixture
async def api() -> AsyncIterator[FakeApiServer]:
    server = await FakeApiServer().start()
    yield server
    await server.stop()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("secret-token\n")
    (folder / "namespace").write_text("team")
    return folder


async def ready_pods(process: RouterProcess, count: int, name: str = "b") -> None:
    """Wait until a backend has so many ready pods."""
    await process.until_routes(
        lambda routes: any(
            entry["name"] == name and entry["readyPods"] == count
            for route in routes
            for entry in route["backends"]
        )
    )


def in_cluster(router: Any, api: FakeApiServer, account: Path) -> RouterProcess:
    process: RouterProcess = router(f"--kube-api={api.url}", f"--service-account={account}")
    return process


async def test_pods_come_from_the_slices_and_follow_them(
    pod_server: Any, router: Any, api: FakeApiServer, account: Path
) -> None:
    first, second = await pod_server(), await pod_server()
    await api.put(endpoint_slice("b-1", "b", endpoint_of(first.host, pod="p1")))
    process = await in_cluster(router, api, account).start(endpoint("e", backend("b")))
    assert (await process.ask()).status == 200
    await api.put(
        endpoint_slice("b-2", "b", endpoint_of(second.host, pod="p2"), endpoint_of("127.0.0.9", ready=False))
    )
    await ready_pods(process, 2)
    await asyncio.gather(*(process.ask() for _ in range(40)))
    assert len(second.seen) > 5
    count = len(first.seen)
    await api.put(
        endpoint_slice(
            "b-1", "b", endpoint_of(first.host, pod="p1", ready=False, serving=True, terminating=True)
        )
    )
    await ready_pods(process, 1)
    await asyncio.gather(*(process.ask() for _ in range(20)))
    assert len(first.seen) == count
    await api.delete("b-1")
    await api.put(endpoint_slice("other", "c", endpoint_of()))
    await ready_pods(process, 1)
    assert (await process.ask()).status == 200
    path, query, headers = api.requests[0]
    assert path == "/apis/discovery.k8s.io/v1/namespaces/team/endpointslices"
    selected = query["labelSelector"].split(",")
    assert {"penstock.dev/backend", "app.kubernetes.io/name=penstock-backend"} <= set(selected)
    assert headers["authorization"] == "Bearer secret-token"
    assert api.requests[1][1]["allowWatchBookmarks"] == "true"


async def test_a_backend_with_no_ready_pod_holds_and_one_with_no_service_shares_its_weight(
    pod_server: Any, router: Any, api: FakeApiServer, account: Path
) -> None:
    server = await pod_server()
    await api.put(endpoint_slice("b-1", "b", endpoint_of(server.host)), endpoint_slice("c-1", "c"))
    process = await in_cluster(router, api, account).start(
        endpoint("e", backend("b"), backend("gone", weight=50)), endpoint("f", backend("c"))
    )
    assert {(await process.ask()).headers["x-penstock-backend"] for _ in range(20)} == {"b"}
    held = asyncio.create_task(process.ask("/f"))
    while 'held_requests{backend="c"} 1.0' not in await process.metrics():
        pass
    await api.put(endpoint_slice("c-1", "c", endpoint_of(server.host)))
    assert (await held).headers["x-penstock-backend"] == "c"


async def test_a_strangers_service_of_a_backends_name_gets_no_request(
    upstream: Any, pod_server: Any, router: Any, api: FakeApiServer, account: Path
) -> None:
    """Without our labels it is nobody's backend, and behind another port than the sidecars' is no sidecar.

    Both while the backend has pods of its own and while it has none, or does not even exist.
    """
    private, sidecar = await upstream(), await pod_server()
    unlabelled = endpoint_slice("s-1", "b", endpoint_of(private.host))
    unlabelled["metadata"]["labels"] = {"kubernetes.io/service-name": "b-backend"}
    unlabelled["ports"] = [{"name": "http", "port": private.port, "protocol": "TCP"}]
    labelled = endpoint_slice("s-2", "b", endpoint_of(private.host))
    labelled["ports"] = unlabelled["ports"]
    labels = {"kubernetes.io/service-name": "m-backend"}
    missing = {**unlabelled, "metadata": {"name": "s-3", "labels": labels}}
    await api.put(unlabelled, labelled, missing, endpoint_slice("b-1", "b", endpoint_of(sidecar.host)))
    process = await in_cluster(router, api, account).start(
        endpoint("e", backend("b")), endpoint("m", backend("m"), coldStart={"timeoutMs": 0})
    )
    assert {(await process.ask()).status for _ in range(20)} == {200}
    assert (await process.ask("/m/x")).document["reason"] == "backend_missing"
    await api.put(endpoint_slice("b-1", "b"))
    await ready_pods(process, 0)
    asked = [seen for seen in sidecar.seen if seen.method != "OPTIONS"]  # nor is it asked for a hop
    assert (len(asked), len(private.seen)) == (20, 0)


@pytest.mark.parametrize("in_stream", [True, False])
async def test_a_version_that_is_too_old_leads_to_a_new_list(
    pod_server: Any, router: Any, api: FakeApiServer, account: Path, in_stream: bool
) -> None:
    api.gone_in_stream = in_stream
    server = await pod_server()
    await api.put(endpoint_slice("b-1", "b"), endpoint_slice("c-1", "c", endpoint_of(server.host)))
    process = await in_cluster(router, api, account).start(
        endpoint("e", backend("b"), backend("c", weight=0))
    )
    await until(lambda: api.watches >= 1)
    # What happens while nobody watches, and is compacted: one slice changes, one goes.
    api.objects["b-1"] = endpoint_slice("b-1", "b", endpoint_of(server.host))
    del api.objects["c-1"]
    api.forget()
    api.cut_streams()
    await ready_pods(process, 1)
    await ready_pods(process, 0, "c")
    assert api.lists == 2
    assert (await process.ask()).status == 200


async def test_a_watch_that_is_cut_goes_on_where_it_stopped(
    pod_server: Any, router: Any, api: FakeApiServer, account: Path
) -> None:
    server = await pod_server()
    await api.put(endpoint_slice("b-1", "b"))
    process = await in_cluster(router, api, account).start(endpoint("e", backend("b")))
    await until(lambda: api.watches == 1)
    await api.bookmark()
    for count in (1, 0, 1, 0):
        watches = api.watches
        api.cut_streams()
        await api.put(endpoint_slice("b-1", "b", *[endpoint_of(server.host)] * count))
        await until(lambda before=watches: api.watches > before)  # type: ignore[misc]
        await ready_pods(process, count)
    assert api.lists == 1


async def test_pods_stay_known_while_the_apiserver_is_away(
    pod_server: Any, router: Any, api: FakeApiServer, account: Path
) -> None:
    server = await pod_server()
    await api.put(endpoint_slice("b-1", "b", endpoint_of(server.host)))
    process = await in_cluster(router, api, account).start(endpoint("e", backend("b")))
    await api.stop()
    await until(lambda: any("cannot be followed" in line for line in process.log))
    assert (await process.ask()).status == 200
    await api.put(endpoint_slice("b-1", "b", endpoint_of(server.host), endpoint_of("127.0.0.2")))
    await api.start()
    await ready_pods(process, 2)
    await until(lambda: any("followed again" in line for line in process.log))


async def test_it_is_not_ready_before_it_knows_its_pods_and_does_not_hammer(
    pod_server: Any, router: Any, api: FakeApiServer, account: Path
) -> None:
    """Watches that are refused are tried again after growing pauses, with what was listed in effect."""
    api.refuse_watches = 403
    server = await pod_server()
    await api.put(endpoint_slice("b-1", "b", endpoint_of(server.host)))
    process = await in_cluster(router, api, account).start(endpoint("e", backend("b")))
    await until(lambda: api.watches >= 4)
    # Pauses of at least half of 0.1, 0.2 and 0.4 s lie between four tries.
    assert api.watched[3] - api.watched[0] > 0.3
    assert (await process.ask()).status == 200
    await until(lambda: any("cannot be followed" in line for line in process.log))
    (warning,) = [line for line in process.log if "cannot be followed" in line]
    assert "found 403" in warning
    await api.stop()
    blind = in_cluster(router, api, account)
    await blind.launch(endpoint("e", backend("b")))
    await until(lambda: any("cannot be followed" in line for line in blind.log))
    assert not any('"message": "ready"' in line for line in blind.log)
    await api.start()
    await blind.ready()


async def test_a_slice_of_a_thousand_pods_is_read(
    pod_server: Any, router: Any, api: FakeApiServer, account: Path
) -> None:
    """Its event is a line of some 150 kB."""
    process = await in_cluster(router, api, account).start(endpoint("e", backend("b")))
    pods = [
        endpoint_of(f"10.1.{index // 250}.{index % 250}", pod=f"model-with-a-long-name-{index:05}")
        for index in range(1000)
    ]
    await api.put(endpoint_slice("b-1", "b", *pods))
    await ready_pods(process, 1000)


async def test_targets_serve_a_backend_without_a_service(
    upstream: Any, router: Any, api: FakeApiServer, account: Path
) -> None:
    server = await upstream()
    process = await in_cluster(router, api, account).start(endpoint("e", backend("b", server.target)))
    assert (await process.ask()).status == 200


def test_where_the_apiserver_is(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert ApiServer.in_cluster(account=account) is None
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert ApiServer.in_cluster(account=account / "missing") is None
    api = ApiServer.in_cluster(account=account)
    assert api == ApiServer(
        url="https://10.0.0.1:6443",
        namespace="team",
        token_file=account / "token",
        ca_file=account / "ca.crt",
    )
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    api = ApiServer.in_cluster(account=account, namespace="mine")
    assert api is not None
    assert (api.url, api.namespace) == ("https://[fd00::1]:6443", "mine")
