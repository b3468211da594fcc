"""A settings file that a person wrote is refused for unknown members; on the wire they are ignored."""

from __future__ import annotations

import msgspec
import pytest

from penstock_router.router import decode_settings
from penstock_wire.control import router_settings, settings
from penstock_wire.errors import DocumentError

SIDECAR = [
    (b"batching: {maxBachSize: 8}", r"\$.batching: unknown member maxBachSize: the nearest is maxBatchSize"),
    (b"batching: {max_batch_size: 8}", r"the nearest is maxBatchSize"),
    (b"maxBatchSize: 8", r"\$: unknown member maxBatchSize: maxBatchSize belongs in \$.batching$"),
    (b"batchWaitTimeout: 20ms", r"\$: unknown member batchWaitTimeout: .* belongs in \$.batching$"),
    (
        b"batching: {priority: {level: 2}}",
        r"\$.batching.priority: unknown member level: the nearest is levels",
    ),
    (b"batching: {cost: {path: text}}", r"Expected `str` matching regex .* - at `\$.batching.cost.path`$"),
    (b"batching: {fairness: {head: x}}", r"\$.batching.fairness: unknown member head: the nearest is header"),
    (b"batching: {qqqqqq: 1}", r"\$.batching: unknown member qqqqqq: known are maxBatchSize, maxBatchBytes"),
    (b"batching: {1: 2}", r"\$.batching: unknown member 1: known are"),
    (b"batching: {batchWaitTimeout: 20}", r"\$.batching.batchWaitTimeout: expected a duration such as 250ms"),
    (
        b"batching: {batchWaitTimeout: 20ms, batchWaitTimeoutMs: 20}",
        "expected batchWaitTimeout or batchWaitTimeoutMs, found both",
    ),
    (b"batching: {batchWaitTimeout: 2h}", r"Expected `int` <= 60000 - at `\$.batching.batchWaitTimeoutMs`"),
    (b"batching: [1]", r"\$.batching: expected a mapping, found \[1\]$"),
    (
        b"batching: {maxBatchBytes: 32MB}",
        r"\$.batching.maxBatchBytes: expected a number of bytes, or a quantity such as 32Mi, found '32MB'$",
    ),
    (b"batching: {batchKeyHeaders: x-a}", r"\$.batching.batchKeyHeaders: expected a list, found 'x-a'$"),
    (b"batching: {maxBatchSize: 4.5}", r"\$.batching.maxBatchSize: expected a whole number, found 4.5$"),
    (b"batching: {maxBatchSize: true}", r"\$.batching.maxBatchSize: expected a whole number, found True$"),
    (
        b"batching: {batchWaitTimeoutMs: 20ms}",
        r"expected a whole number, found '20ms'; durations go into \$.batching.batchWaitTimeout$",
    ),
    (b'{"batching": {"maxBachSize": 8}}', "the nearest is maxBatchSize"),
    (
        b"batching: {latencyObjective: 1m}",
        r"\$.batching.latencyObjective: expected at most defaultTimeout \(30s\), found 1m$",
    ),
    (
        b"batching: {latencyObjectiveMs: 5000, defaultTimeout: 4s}",
        r"expected at most defaultTimeout \(4s\), found 5s",
    ),
    (
        b"batching: {onBatchError: isolate}",
        r"\$.batching.onBatchError: expected Isolate or Fail, found 'isolate'$",
    ),
    (b"batching: {onBatchError: true}", r"\$.batching.onBatchError: expected Isolate or Fail, found True$"),
    (
        b"batching: {maxConcurrentBatches: many}",
        r"\$.batching.maxConcurrentBatches: expected a whole number, found 'many'$",
    ),
    (b"batching: {maxConcurrentBatches: 65}", r"Expected `int` <= 64"),
]


@pytest.mark.parametrize(("data", "message"), SIDECAR)
def test_a_sidecars_file_is_refused_with_the_place_and_what_is_near(data: bytes, message: str):
    with pytest.raises(DocumentError, match=message):
        settings.decode(data, text=True, by_hand=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"endpoints: [{name: a}, {name: e, targets: ['h:1']}]",
            r"\$.endpoints\[1\]: unknown member targets: .* belongs in \$.endpoints\[\].backends\[\] or ",
        ),
        (b"endpoints: [{name: e, backend: []}]", r"\$.endpoints\[0\]: .* the nearest is backends"),
        (b"backends: []", r"\$: unknown member backends: backends belongs in \$.endpoints\[\]$"),
        (
            b"endpoints: [{name: e, backends: [{name: b, wieght: 1}]}]",
            r"\$.endpoints\[0\].backends\[0\]: .*weight",
        ),
        (b'{"endpoints": [{"name": "e", "targets": []}]}', r"belongs in .* or \$.endpoints\[\].mirrors\[\]$"),
        (
            b"endpoints: [{name: e, route: d, backends: [{name: b}]}]",
            r"\$.endpoints\[0\].route: expected one that begins with /, found 'd'$",
        ),
        (
            b"endpoints: [{name: e, backends: [{name: b}, {name: b}]}]",
            r"\$.endpoints\[0\].backends: expected unique names, found 'b' again",
        ),
        (
            b"endpoints: [{name: e, methods: [GET, post], backends: [{name: b}]}]",
            r"\$.endpoints\[0\].methods\[1\]: expected one of GET, .*S, found 'post': did you mean POST\?",
        ),
        (
            b"endpoints: [{name: e, methods: [PSOT], backends: [{name: b}]}]",
            r"expected one of GET, .* found 'PSOT'$",
        ),
        (
            b"endpoints: [{name: a, backends: [{name: b}]}, {name: e, backends: []}]",
            r"\$.endpoints\[1\].backends: expected at least one backend with a weight above 0, found none",
        ),
        (
            b"endpoints: [{name: e, backends: [{name: b, weight: 0}, {name: c, weight: 0}]}]",
            r"\$.endpoints\[0\].backends: expected at least one backend with a weight above 0, found none",
        ),
        (
            b"endpoints: [{route: /e, backends: [{name: b}]}]",
            r"\$.endpoints\[0\]: expected the member name, found route, backends$",
        ),
        (
            b"endpoints: [{name: e, backends: [{}]}]",
            r"\$.endpoints\[0\].backends\[0\]: expected the member name, found none$",
        ),
        (
            b"apiVersion: penstock.dev/v1alpha1\nkind: ModelEndpoint\nspec: {backend: b}",
            "router settings: expected a settings file, found a Kubernetes resource of kind ModelEndpoint$",
        ),
        (
            b"endpoints: [{name: e, backends: [{name: b, targets: ['h:1', 'http://h:2/x']}]}]",
            r"\$.endpoints\[0\].backends\[0\].targets\[1\]: expected host:port such as h:2, found a URL: 'http://h:2/x'",
        ),
    ],
)
def test_a_routers_file_is_refused_with_the_place_and_where_it_belongs(data: bytes, message: str):
    with pytest.raises(DocumentError, match=message):
        decode_settings(data, by_hand=True)


def test_durations_may_be_written_as_in_a_batch_policy():
    written = b"""
    batching: {batchWaitTimeout: 20ms, latencyObjective: 1m30s, defaultTimeout: 2m}
    userConfig: {anyMember: {timeout: 5s}}
    """
    read = settings.decode(written, text=True, by_hand=True)
    batching = read.batching
    assert (batching.batch_wait_timeout_ms, batching.latency_objective_ms, batching.default_timeout_ms) == (
        20,
        90_000,
        120_000,
    )
    assert read.user_config == {"anyMember": {"timeout": "5s"}}
    nothing = settings.decode(b"batching: {latencyObjective: null}", text=True, by_hand=True)
    assert nothing.batching.latency_objective_ms is None
    endpoints = b'{"endpoints": [{"name": "e", "timeout": "5s", "coldStart": {"timeout": "1m"},'
    endpoints += b' "backends": [{"name": "b"}]}]}'
    (endpoint,) = decode_settings(endpoints, by_hand=True).endpoints
    assert (endpoint.timeout_ms, endpoint.cold_start.timeout_ms) == (5_000, 60_000)


def test_whole_numbers_may_be_written_as_numbers():
    written = settings.decode(b"{batching: {maxBatchSize: 4.0}, userConfig: 4.0}", text=True, by_hand=True)
    assert (repr(written.batching.max_batch_size), repr(written.user_config)) == ("4", "4.0")


def test_sizes_may_be_written_as_in_a_resource():
    """As quantities, or as numbers; for a pod, and for a router that runs alone."""
    assert settings.decode(b"batching: {maxBatchBytes: 2Mi}", text=True, by_hand=True).batching == (
        settings.Batching(max_batch_bytes=2 * 1024**2)
    )
    written = b"endpoints: [{name: e, maxBodyBytes: %b, backends: [{name: b}]}]"
    sizes = {b"2Mi": 2 * 1024**2, b"3k": 3000, b"'17'": 17, b"17": 17, b"null": None}
    for size, expected in sizes.items():
        (endpoint,) = decode_settings(written % size, by_hand=True).endpoints
        assert endpoint.max_body_bytes == expected
    for size, found in ((b"2 MB", "found '2 MB'"), (b"0Mi", "Expected `int` >= 1"), (b"[1]", "found \\[1]")):
        with pytest.raises(DocumentError, match=rf"maxBodyBytes.*{found}|{found}.*maxBodyBytes"):
            decode_settings(written % size, by_hand=True)


def test_what_the_operator_sends_may_have_members_that_this_version_does_not_know():
    sidecar = b'{"v": 1, "version": 7, "batching": {"maxBatchSize": 8, "later": 1}, "later": {}}'
    assert settings.decode(sidecar, text=True).batching.max_batch_size == 8
    router = b'{"v": 1, "version": 7, "endpoints": [{"name": "e", "later": 1}]}'
    assert decode_settings(router).endpoints[0].name == "e"


def test_what_the_operator_sends_is_not_judged_as_a_persons_file_is():
    """What a resource may hold is for the apiserver to check; a data plane serves what it can."""
    sidecar = b'{"v": 1, "version": 7, "batching": {"latencyObjectiveMs": 2, "defaultTimeoutMs": 1}}'
    assert settings.decode(sidecar, text=True).batching.latency_objective_ms == 2
    router = b'{"v": 1, "version": 7, "endpoints": [{"name": "e", "methods": ["PURGE"]}]}'
    assert decode_settings(router).endpoints[0].methods == ("PURGE",)


@pytest.mark.parametrize(
    ("module", "shown"),
    [(settings, settings.Settings()), (router_settings, router_settings.RouterSettings(endpoints=()))],
)
def test_what_a_process_shows_of_its_settings_may_be_written_into_a_file(module, shown):
    assert module.decode(msgspec.json.encode(shown), text=True, by_hand=True) == shown
