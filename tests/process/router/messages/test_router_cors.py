"""Web pages of other origins: a real router, real servers, and a page that keeps to the Fetch standard."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_router.messages.cors import Policy
from penstock_router.router import decode_settings
from penstock_wire.control.router_settings import Cors
from penstock_wire.errors import DocumentError
from tests.support.http.router_upstream import Answer, Seen, refuse
from tests.support.processes.router_process import backend, endpoint
from tests.support.processes.web_page import Blocked, Page

APP = "https://app.example"
JSON = {"content-type": "application/json"}


def pages(*origins: str, **more: Any) -> dict[str, Any]:
    return {"origins": list(origins or [APP]), **more}


@pytest.mark.parametrize("origins", [[APP], ["http://other", APP], ["*"]])
async def test_a_page_of_a_listed_origin_sends_json_and_reads_the_answer(
    upstream: Any, router: Any, origins: list[str]
) -> None:
    """The preflight is the router's: the model is asked once, and `methods` does not forbid OPTIONS."""
    server = await upstream()
    process = await router().start(
        endpoint("e", backend("b", server.target), methods=["POST"], cors=pages(*origins))
    )
    page = Page(router=process, origin=APP)
    status, fields, body = await page.fetch("/e/x", headers={**JSON, "x-request-id": "mine"})
    assert (status, json.loads(body)["id"], fields["x-request-id"]) == (200, "mine", "mine")
    assert fields["x-penstock-backend"] == "b"
    assert [(seen.method, seen.header("origin")) for seen in server.seen] == [("POST", APP)]


async def test_a_page_of_another_origin_is_blocked_before_it_sends_and_cannot_read_what_needs_no_preflight(
    upstream: Any, router: Any
) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target), cors=pages()))
    for origin in ("https://app.example.evil", "http://app.example", "https://app.example:8443", "null"):
        page = Page(router=process, origin=origin)
        with pytest.raises(Blocked, match=r"preflight: origin ''"):
            await page.fetch("/e/x", headers=JSON)
        asks = {"origin": origin, "access-control-request-method": "POST"}
        preflight = await process.ask("/e/x", method="OPTIONS", headers=asks)
        assert preflight.headers.getall("vary") == ["origin"]
        assert not server.seen
        with pytest.raises(Blocked, match=r"answer: origin ''"):
            await page.fetch("/e/x", headers={"content-type": "text/plain"})
        server.seen.clear()


async def test_a_page_sends_the_methods_and_fields_that_the_endpoint_names(
    upstream: Any, router: Any
) -> None:
    server = await upstream()
    process = await router().start(
        endpoint("e", backend("b", server.target), methods=["POST", "PUT"], cors=pages(headers=["X-Tenant"]))
    )
    page = Page(router=process, origin=APP)
    assert (await page.fetch("/e/x", method="PUT", headers={"x-tenant": "a", **JSON}))[0] == 200
    with pytest.raises(Blocked, match="method DELETE"):
        await page.fetch("/e/x", method="DELETE")
    with pytest.raises(Blocked, match=r"fields \['authorization'\]"):
        await page.fetch("/e/x", headers={"authorization": "x", **JSON})
    status, _, body = await page.fetch("/e/x", method="GET")
    assert (status, json.loads(body)["reason"]) == (405, "method_not_allowed")


async def test_an_endpoint_of_all_methods_names_them_in_a_preflight(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target), cors=pages("*")))
    page = Page(router=process, origin=APP)
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await page.fetch("/e/x", method=method))[0] == 200


async def test_credentials_need_to_be_allowed(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(
        endpoint("with", backend("b", server.target), cors=pages(credentials=True)),
        endpoint("without", backend("b", server.target), cors=pages()),
        endpoint("all", backend("b", server.target), cors=pages("*")),
    )
    page = Page(router=process, origin=APP, credentials=True)
    assert (await page.fetch("/with/x", headers=JSON))[0] == 200
    with pytest.raises(Blocked, match="preflight: credentials"):
        await page.fetch("/without/x", headers=JSON)
    with pytest.raises(Blocked, match=r"preflight: origin '\*'"):
        await page.fetch("/all/x", headers=JSON)


async def test_a_page_reads_refusals_and_errors_of_ours(upstream: Any, router: Any) -> None:
    """The router's own, and the sidecar's, with what says when to come again."""
    full = await upstream(refuse("queue_full"))
    process = await router().start(
        endpoint("full", backend("b", full.target), cors=pages(), coldStart={"maxPending": 0}),
        endpoint("cold", backend("none"), cors=pages(), coldStart={"timeoutMs": 1}),
    )
    page = Page(router=process, origin=APP)
    for path, reason in (("/full/x", "queue_full"), ("/cold/x", "backend_missing")):
        status, fields, body = await page.fetch(path, headers=JSON)
        assert (status, json.loads(body)["reason"], fields["x-penstock-reason"]) == (503, reason, reason)
        assert int(fields["retry-after"]) >= 1


async def test_what_a_model_says_of_cors_itself_passes_untouched(upstream: Any, router: Any) -> None:
    """No field is there twice, whether the endpoint has `cors` or not."""

    async def speaks(seen: Seen) -> Answer:
        return Answer(
            headers=b"access-control-allow-origin: https://mine\r\naccess-control-expose-headers: x-own\r\n"
            b"vary: origin\r\nx-own: 1\r\n"
        )

    server = await upstream(speaks)
    process = await router().start(
        endpoint("with", backend("b", server.target), cors=pages(credentials=True)),
        endpoint("without", backend("b", server.target)),
    )
    for path in ("/with/x", "/without/x"):
        reply = await process.ask(path, headers={"origin": APP})
        assert reply.headers.getall("access-control-allow-origin") == ["https://mine"]
        assert reply.headers.getall("access-control-expose-headers") == ["x-own"]
        assert reply.headers.getall("vary") == ["origin"]
        assert "access-control-allow-credentials" not in reply.headers


async def test_an_answer_to_a_preflight_sets_no_cookie(upstream: Any, router: Any) -> None:
    """No pod has answered: the cookie comes with the answer of the first that does."""
    server = await upstream()
    sticky = {"cookie": {"name": "pod"}}
    process = await router().start(
        endpoint("e", backend("b", server.target), cors=pages(credentials=True), sessionAffinity=sticky)
    )
    asks = {"origin": APP, "access-control-request-method": "POST"}
    preflight = await process.ask("/e/x", method="OPTIONS", headers=asks)
    ended = await process.ask("/e/x", method="OPTIONS", headers={"max-forwards": "0"})
    assert [(reply.status, reply.headers.getall("set-cookie", [])) for reply in (preflight, ended)] == [
        (204, []),
        (204, []),
    ]
    assert (preflight.headers["access-control-allow-origin"], server.seen) == (APP, [])
    (cookie,) = (await process.ask("/e/x", headers={"origin": APP})).headers.getall("set-cookie")
    assert cookie.startswith("pod=")


async def test_without_cors_a_preflight_is_the_models_whatever_the_methods(
    upstream: Any, router: Any
) -> None:
    """A plain OPTIONS is still a method that the endpoint does not take."""

    async def speaks(seen: Seen) -> Answer:
        return Answer(
            headers=b"access-control-allow-origin: *\r\naccess-control-allow-headers: content-type\r\n"
        )

    server = await upstream(speaks)
    process = await router().start(endpoint("e", backend("b", server.target), methods=["POST"]))
    assert (await Page(router=process, origin=APP).fetch("/e/x", headers=JSON))[0] == 200
    assert [seen.method for seen in server.seen] == ["OPTIONS", "POST"]
    assert (await process.ask(method="OPTIONS", headers={"origin": APP})).status == 405


async def test_new_settings_hold_from_the_next_request_on(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target)))
    page = Page(router=process, origin=APP)
    with pytest.raises(Blocked):
        await page.fetch("/e/x", headers=JSON)
    process.settle(endpoint("e", backend("b", server.target), cors=pages(), methods=["POST", "PUT"]))
    await process.until_routes(lambda routes: routes[0]["methods"] == ["POST", "PUT"])
    assert (await page.fetch("/e/x", headers=JSON))[0] == 200


@pytest.mark.parametrize("origin", [None, b"https://other", b"https://app.example"])
def test_caches_keep_answers_for_unlike_origins_apart(origin: bytes | None) -> None:
    """Also the answer for a request without an origin, which a page's may not be given."""
    request = () if origin is None else ((b"origin", origin),)
    assert (b"vary", b"origin") in Policy(Cors(origins=(APP,)), ()).marked((), request)
    answer = Policy(Cors(origins=("*",)), ()).marked((), request)
    assert [value for name, value in answer if name == b"access-control-allow-origin"] == [b"*"]
    assert (b"vary", b"origin") not in answer


@pytest.mark.parametrize(
    ("cors", "says"),
    [
        ({"origins": ["https://app.example/"]}, "origins: expected * or an origin"),
        ({"origins": ["https://App.example"]}, "origins: expected * or an origin"),
        ({"origins": ["https://a.example\r\nx: y"]}, "origins: expected * or an origin"),
        ({"origins": ["https://a.example\n"]}, "origins: expected * or an origin"),
        ({"origins": ["null"]}, "origins: expected * or an origin"),
        ({"origins": [APP], "headers": ["a b"]}, "headers: expected the name of a header field, found 'a b'"),
        ({"origins": [APP], "headers": ["*"]}, "headers: expected the name of a header field, found '*'"),
        ({"origins": ["*", APP], "credentials": True}, "credentials: expected false where origins has *"),
    ],
)
def test_a_cors_that_cannot_be_is_refused_with_its_field(cors: dict[str, Any], says: str) -> None:
    document = {"v": 1, "endpoints": [{"name": "e", "cors": cors}]}
    with pytest.raises(DocumentError) as caught:
        decode_settings(json.dumps(document).encode())
    assert f"router settings: endpoint e: cors.{says}" in str(caught.value)
