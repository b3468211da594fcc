"""The page of an endpoint whose routers namespaces share: what they measure, and calls through them."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from penstock_cli.ui import scrapes, server
from penstock_operator.kinds import ENDPOINT_SLICE
from tests.process.cli.test_cli_ui import Page, eventually, paged
from tests.support.processes.browser import on_page
from tests.unit.operator_shell.test_opshell_shared_router import HOME, NAME, sharing

PODS = [f"{NAME}-0", f"{NAME}-1"]
VIEW = "api/view/ModelEndpoint/n/e"
Answers = Callable[[web.Request], web.Response]


def refuses(status: int, message: str) -> Answers:
    """As the API server's own answers are (1.34)."""
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status}
    return lambda _: web.json_response(said | {"message": message}, status=status)


def may_not(verb: str) -> Answers:
    """A user who has not the right to a proxy of pods."""
    return refuses(
        403,
        f'pods "{PODS[0]}:8001" is forbidden: User "u" cannot {verb} resource "pods/proxy" in API group "" '
        f'in the namespace "{HOME}"',
    )


def measured() -> Answers:
    """A shared router's metrics: 10 requests more of each of two namespaces with each look; or of one."""
    looks = itertools.count(1)

    def answer(request: web.Request) -> web.Response:
        lines, count = list[str](), 10 * next(looks)
        for each, slow in (("n", 0), ("other", 1)):
            if request.query.get("namespace", each) == each:
                labels = f'namespace="{each}",endpoint="e",backend="m"'
                lines.append(f'penstock_router_requests_total{{{labels},code="200",reason=""}} {count}')
                lines.append(f'penstock_router_held_requests{{namespace="{each}",backend="m"}} {3 + slow}')
                lines += [
                    f'penstock_router_duration_seconds_bucket{{{labels},le="{le}"}} {seen}'
                    for le, seen in (("0.01", count * (1 - slow)), ("1.0", count), ("+Inf", count))
                ]
        return web.Response(text="\n".join([*lines, ""]))

    return answer


def asked(page: Page, *ports: int) -> list[tuple[str, str]]:
    """The calls of pods' ports of the operator's namespace, as method and path."""
    root = f"/api/v1/namespaces/{HOME}/pods/"
    found = [
        (method, path.removeprefix(root))
        for method, path, *_ in page.server.requests
        if path.startswith(root)
    ]
    return [each for each in found if any(f":{port}/" in each[1] for port in ports)]


@pytest.fixture
async def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    monkeypatch.setattr(scrapes, "EVERY", 0.1)
    monkeypatch.setattr(scrapes, "MOST_A_SECOND", 50)
    monkeypatch.setattr(server, "SHARED_SECONDS", 0.0)
    async with paged(await sharing("n", "other"), tmp_path) as made:
        for pod in PODS:
            made.server.proxies[f"/api/v1/namespaces/{HOME}/pods/{pod}:8001/proxy/metrics"] = measured()
        nowhere = refuses(503, 'no endpoints available for service "e"')
        made.server.proxies["/api/v1/namespaces/n/services/e:80/proxy"] = nowhere
        await made.whole()
        yield made


def port_of(page: Page) -> int:
    """The endpoint's port on shared routers."""
    found: int = page.harness.cluster.find(ENDPOINT_SLICE, "n", "e-shared-router")["ports"][0]["port"]
    return found


async def test_what_shared_routers_measure_of_its_namespace_is_shown(page: Page) -> None:
    """Of an endpoint of that name in another namespace nothing is."""
    view: dict[str, Any] = {}

    async def rated() -> bool:
        view.update((await page.ask(VIEW))["view"])
        return bool(view["flows"][0]["rate"])

    await eventually(rated)
    assert [each["name"] for each in view["routers"]] == [f"{HOME}/{pod}" for pod in PODS]
    assert not any(each["problem"] for each in view["routers"])
    assert (view["flows"][0]["p50"], view["flows"][0]["p99"]) == ([0.0, 10.0], [0.0, 10.0])
    assert view["flows"][0]["held"] == 6
    lists = [path for method, path, query, _ in page.server.requests if path.endswith(f"/{HOME}/pods")]
    assert lists == [], "no right to read the operator's namespace is needed"


async def test_a_call_goes_through_a_shared_router(page: Page) -> None:
    """By the endpoint's port; its example likewise."""
    for pod in PODS:
        path = f"/api/v1/namespaces/{HOME}/pods/{pod}:{port_of(page)}/proxy"
        page.server.proxies[path] = lambda request: web.json_response({"at": request.raw_path}, status=403)
    body = json.dumps({"method": "POST", "path": "/predict?a=b", "body": "{}"})
    said = await page.ask("api/try/n/e", method="POST", data=body)
    assert said["status"] == 403  # a model's own
    assert said["body"].endswith('/proxy/predict?a=b"}')
    assert (await page.ask("api/schema/n/e"))["body"].endswith('/proxy/openapi.json"}')
    assert [method for method, _ in asked(page, port_of(page))] == ["POST", "GET"]


async def test_who_has_not_the_rights_reads_which(page: Page, tmp_path: Path) -> None:
    for pod in PODS:
        root = f"/api/v1/namespaces/{HOME}/pods/{pod}"
        page.server.proxies[f"{root}:8001/proxy"] = page.server.proxies[f"{root}:{port_of(page)}/proxy"] = (
            may_not("get")
        )
        del page.server.proxies[f"{root}:8001/proxy/metrics"]
    said = await page.ask("api/try/n/e", method="POST", data='{"method": "GET", "path": "/"}', status=403)
    assert said["detail"].startswith(
        f"you may not call it: its routers are shared, in namespace {HOME}: pods "
    )
    script = """
    const pause = () => new Promise(done => setTimeout(done, 50)), words = name =>
      document.querySelector(`[data-panel=${name}]`)?.innerText ?? "";
    while (!document.querySelector(".rows > li")) await pause();
    location.hash = "#/ModelEndpoint/n/e";
    while (!words("pods").includes("cannot be read") || !words("try").includes("may not")) await pause();
    return [words("pods"), words("try")];"""
    pods, called = await on_page(page.url + page.fragment, script, tmp_path / "browser")
    assert f"{HOME}/{PODS[0]}" in pods
    assert "Metrics of pods cannot be read: pods " in pods
    assert f'cannot get resource "pods/proxy" in API group "" in the namespace "{HOME}"' in pods
    assert "you may not call it: its routers are shared" in called


async def test_who_may_not_read_slices_reads_it_where_there_are_no_other_routers(page: Page) -> None:
    page.server.fail["GET", "endpointslices"] = [403] * 100
    view = (await page.ask(VIEW))["view"]
    problem = "cannot read EndpointSlice n/e-shared-router: induced"
    assert (view["routers"], view["routersProblem"]) == ([], problem)
    said = await page.ask("api/try/n/e", method="POST", data='{"method": "GET", "path": "/"}', status=502)
    assert said["detail"] == (
        f'cannot call it: no endpoints available for service "e"; if its routers are shared: {problem}'
    )


@pytest.mark.parametrize(
    "target",
    [
        {},
        {"namespace": "kube-system", "name": "etcd-0"},
        {"namespace": "..", "name": PODS[0]},
        {"namespace": HOME, "name": f"{PODS[0]}/../../../secrets"},
        {"namespace": HOME, "name": PODS[0], "kind": "Node"},
    ],
)
async def test_no_pod_is_asked_that_is_not_a_shared_router(page: Page, target: dict[str, str]) -> None:
    """Whatever a user who may write slices, or an older operator, has written."""

    def forge(slice_: dict[str, Any]) -> None:
        for each in slice_["endpoints"]:
            each["targetRef"] = {"kind": "Pod", **target}

    page.harness.cluster.edit(ENDPOINT_SLICE, "n", "e-shared-router", forge)
    before = len(asked(page, 8001, port_of(page)))
    view = (await page.ask(VIEW))["view"]
    assert (view["routers"], "names no pods" in view["routersProblem"]) == ([], True)
    said = await page.ask("api/try/n/e", method="POST", data='{"method": "GET", "path": "/"}', status=502)
    assert "names no pods" in said["detail"]
    assert len(asked(page, 8001, port_of(page))) == before
