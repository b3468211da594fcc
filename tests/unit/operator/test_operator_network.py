"""Who may reach our pods, and what the installation adds to every pod."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from penstock_operator import config as configuration
from penstock_operator.api import ModelBackend, ModelEndpoint
from penstock_operator.desired import backend, deployment, labels, pods, ports, router, sidecar
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.objects import Object
from penstock_operator.errors import ConfigError
from penstock_wire import contract
from tests.support.pages.documented import default_deny_example

CONFIG = RenderConfig(sidecar_image="s", router_image="r")
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
GATEWAY = {"podSelector": {"matchLabels": {"app": "gateway"}}}
ROUTERS = [
    *[
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": name}}}
        for name in ("penstock-router", "penstock-dedicated-router")
    ],
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "penstock-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "penstock-shared-router"}},
    },
]


def of_backend(config: RenderConfig, **spec: Any) -> dict[str, Object]:
    """A backend's objects by kind."""
    model = {"container": {"image": "i"}, "port": 9000}
    wanted = ModelBackend.parse({"metadata": {"name": "b", "uid": "b"}, "spec": {"model": model} | spec})
    pinned = deployment.pinned_template(wanted, config=config, new_secret="x", live=None)
    objects = backend.backend_objects(wanted, document=b"{}", pinned=pinned, config=config)
    return {item["kind"]: item for item in objects}


def of_router(config: RenderConfig) -> dict[str, Object]:
    """A router's objects by kind."""
    owner = ModelEndpoint.parse({"metadata": {"name": "e", "uid": "e"}, "spec": {"backend": "b"}})
    objects = router.router_objects("n", [owner], config=config, document=b"{}")
    return {item["kind"]: item for item in objects}


def of_shared_router(config: RenderConfig) -> dict[str, Object]:
    """The objects of the router that namespaces share, by kind."""
    return {item["kind"]: item for item in router.shared_objects("n", config=config, document=b"{}")}


def ingress(objects: dict[str, Object]) -> list[tuple[list[Any] | None, list[Any]]]:
    """A policy's rules: peers (None: all) and ports."""
    return [
        (rule.get("from"), [(port["port"], port.get("endPort")) for port in rule["ports"]])
        for rule in objects["NetworkPolicy"]["spec"]["ingress"]
    ]


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        (CONFIG, [([*ROUTERS, {"podSelector": {}}], [(8012, None)])]),
        (replace(CONFIG, backends_from=()), [(ROUTERS, [(8012, None)])]),
        (replace(CONFIG, backends_from=(GATEWAY,)), [([*ROUTERS, GATEWAY], [(8012, None)])]),
        (
            replace(CONFIG, backends_from=(), metrics_from=(PROMETHEUS,)),
            [(ROUTERS, [(8012, None)]), ([PROMETHEUS], [(8013, None)])],
        ),
    ],
)
def test_who_reaches_a_backend(config: RenderConfig, rules: list[Any]) -> None:
    """Requests from routers and the named peers, metrics from the named peers, the model from none."""
    assert ingress(of_backend(config)) == rules


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        (CONFIG, [(None, [(8000, None), (20000, 29999)])]),
        (replace(CONFIG, routers_from=(GATEWAY,)), [([GATEWAY], [(8000, None), (20000, 29999)])]),
        (
            replace(CONFIG, metrics_from=(PROMETHEUS,)),
            [(None, [(8000, None), (20000, 29999)]), ([PROMETHEUS], [(8001, None)])],
        ),
    ],
)
def test_who_reaches_a_router(config: RenderConfig, rules: list[Any]) -> None:
    """The front door and every port of an endpoint, by default from all peers; metrics too."""
    assert ingress(of_router(config)) == rules
    assert (ports.FIRST, ports.LAST) == (20000, 29999)


def test_a_policy_selects_its_pods_and_leaves_what_they_call_alone() -> None:
    """Its selector is a part of the pods' labels, whatever a user adds; egress is free by default."""
    for objects, own in (
        (of_backend(CONFIG, podTemplate={"labels": {"a": "b"}}), labels.backend_selector("b")),
        (of_router(CONFIG), labels.router_selector()),
    ):
        spec = objects["NetworkPolicy"]["spec"]
        assert spec["podSelector"] == {"matchLabels": own}
        assert own.items() <= objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
        assert spec["policyTypes"] == ["Ingress"]
        assert "egress" not in spec


APISERVER = {"to": [{"ipBlock": {"cidr": "192.0.2.10/32"}}], "ports": [{"port": 6443}]}
OPERATORS = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "penstock-system"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "penstock-operator"}},
}


@pytest.mark.parametrize(
    ("flags", "reports"),
    [
        ([], {"to": [OPERATORS], "ports": [{"protocol": "TCP", "port": 8016}]}),
        (["--report-to=https://elsewhere"], {"ports": [{"protocol": "TCP", "port": 443}]}),
        (["--report-to=http://[::1]:9000"], {"ports": [{"protocol": "TCP", "port": 9000}]}),
    ],
)
def test_what_a_router_may_open_where_the_way_to_the_apiserver_is_known(
    flags: list[str], reports: Object
) -> None:
    """Model pods, the operator, DNS and what the installation names; a backend opens what it likes."""
    config = configuration.parse([*flags, "--egress", json.dumps([APISERVER])]).render
    spec = of_router(config)["NetworkPolicy"]["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    models, *rest = spec["egress"]
    assert rest == [
        reports,
        {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
        APISERVER,
    ]
    assert models["ports"] == [{"protocol": "TCP", "port": sidecar.DATA_PORT}]
    (selector,) = (peer["podSelector"]["matchLabels"] for peer in models["to"])
    objects = of_backend(config)
    assert selector.items() <= objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert objects["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress"]


def test_what_the_docs_give_a_default_deny_namespace_is_what_pods_need() -> None:
    """The example selects the pods that are rendered, and opens what their own policies would."""
    models, routers, clients = yaml.safe_load_all(default_deny_example())
    config = configuration.parse(["--egress", '[{"ports": [{"protocol": "TCP", "port": 443}]}]']).render
    backends, router = of_backend(config), of_router(config)
    for policy, objects in ((models, backends), (routers, router)):
        own = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= own.items()
        assert policy["spec"]["policyTypes"] == ["Egress"]
    to_models, reports, dns, apiserver = router["NetworkPolicy"]["spec"]["egress"]
    files = to_models | {"ports": [{"protocol": "TCP", "port": contract.ARTIFACT_PORT}]}
    assert models["spec"]["egress"] == [reports, dns, files]
    assert routers["spec"]["egress"][:3] == [to_models, reports, dns]
    assert all(port in routers["spec"]["egress"][3]["ports"] for port in apiserver["ports"])
    (way_in,) = router["NetworkPolicy"]["spec"]["ingress"]
    to_routers, to_shared, names = clients["spec"]["egress"]
    assert to_routers["to"] == [{"podSelector": routers["spec"]["podSelector"]}]
    assert (to_routers["ports"], names) == (way_in["ports"], dns)
    assert to_shared["to"] == ROUTERS[-1:]
    (way_in,) = of_shared_router(config)["NetworkPolicy"]["spec"]["ingress"]
    assert to_shared["ports"] == way_in["ports"]


def test_a_shared_router_is_called_by_whom_the_installation_names_and_calls_the_pods_of_all_namespaces() -> (
    None
):
    config = replace(
        CONFIG, routers_from=(GATEWAY,), egress=(APISERVER,), operator_namespace="penstock-system"
    )
    objects = of_shared_router(config)
    assert ingress(objects) == [([GATEWAY], [(ports.SHARED_FIRST, ports.LAST)])]
    (models, *_) = objects["NetworkPolicy"]["spec"]["egress"]
    assert models["to"] == [
        {"podSelector": {"matchLabels": labels.backends_selector()}, "namespaceSelector": {}}
    ]


def test_the_ports_of_a_policy_are_those_of_the_containers() -> None:
    """What the sidecar listens on; the model's own port is in no rule."""
    every = replace(CONFIG, metrics_from=(PROMETHEUS,))
    objects = of_backend(every)
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    opened = {port for _, numbers in ingress(objects) for port, _ in numbers}
    assert opened == {port["containerPort"] for port in pod["initContainers"][0]["ports"]}
    assert opened == {sidecar.DATA_PORT, sidecar.ADMIN_PORT}
    assert [port["containerPort"] for port in pod["containers"][0]["ports"]] == [9000]


def test_without_network_policies() -> None:
    """An installation may leave them to another tool."""
    config = replace(CONFIG, network_policies=False)
    assert "NetworkPolicy" not in of_backend(config)
    assert "NetworkPolicy" not in of_router(config)


def test_pull_secrets_reach_every_pod() -> None:
    """The user's own come first, and no name comes twice."""
    config = replace(CONFIG, image_pull_secrets=("registry", "mine"))
    template = {"imagePullSecrets": [{"name": "mine"}]}

    def secrets(objects: dict[str, Object]) -> list[str]:
        pod = objects["Deployment"]["spec"]["template"]["spec"]
        return [secret["name"] for secret in pod.get("imagePullSecrets", [])]

    assert secrets(of_backend(config, podTemplate=template)) == ["mine", "registry"]
    assert secrets(of_backend(config)) == secrets(of_router(config)) == ["registry", "mine"]
    assert secrets(of_backend(CONFIG)) == secrets(of_router(CONFIG)) == []


def test_pods_spread_softly_unless_the_user_says_how() -> None:
    """Over the nodes, by their own labels, and no pod waits for it; a user's constraints stand alone."""

    def spread(objects: dict[str, Object]) -> list[Object]:
        constraints: list[Object] = objects["Deployment"]["spec"]["template"]["spec"][
            "topologySpreadConstraints"
        ]
        return constraints

    for objects, own in (
        (of_backend(CONFIG), labels.backend_selector("b")),
        (of_router(CONFIG), labels.router_selector()),
    ):
        (constraint,) = spread(objects)
        assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == (
            "kubernetes.io/hostname",
            "ScheduleAnyway",
        )
        assert constraint["labelSelector"] == {"matchLabels": own}
    mine = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    assert spread(of_backend(CONFIG, podTemplate={"topologySpreadConstraints": [mine]})) == [mine]


ROUTER_RUNS = {
    "priorityClassName": "data-plane",
    "nodeSelector": {"pool": "edge"},
    "tolerations": [{"key": "edge", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
}


@pytest.mark.parametrize("name", ["", *ROUTER_RUNS])
def test_where_routers_run_is_the_installations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the chart hands it over; what is left empty is not said, so that a spread over nodes stays."""
    before = of_router(CONFIG)["Deployment"]["spec"]["template"]["spec"]
    chosen = {name: ROUTER_RUNS[name]} if name else {}
    empty = {name: type(value)() for name, value in ROUTER_RUNS.items()}
    monkeypatch.setenv("PENSTOCK_ROUTER_SCHEDULING", json.dumps(empty | chosen))
    monkeypatch.setenv("PENSTOCK_ROUTER_RESOURCES", '{"requests": {"cpu": "2"}}')
    assert configuration.parse([]).render.sidecar_resources == CONFIG.sidecar_resources
    monkeypatch.setenv("PENSTOCK_SIDECAR_RESOURCES", '{"limits": {"cpu": "3"}}')
    render = configuration.parse([]).render
    after = of_router(replace(render, sidecar_image="s", router_image="r"))["Deployment"]["spec"]["template"]
    assert after["spec"] | {"containers": []} == before | chosen | {"containers": []}
    assert after["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    assert render.sidecar_resources == {"limits": {"cpu": "3"}}


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--router-resources", "[]", "requests and limits"),
        ("--router-resources", '{"request": {"cpu": "1"}}', "requests and limits"),
        ("--router-resources", '{"requests": {"cpu": "much"}}', "quantities"),
        (
            "--sidecar-resources",
            '{"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"cpu": "1500m"}}',
            r"expected limits.cpu of at least requests.cpu \(2\)",
        ),
        ("--router-resources", "{", "--router-resources: expected JSON: Expecting property name"),
        ("--router-scheduling", "[]", "expected a JSON object of priorityClassName, nodeSelector"),
        ("--router-scheduling", "{", "--router-scheduling"),
        ("--router-scheduling", '{"affinity":' * 3000 + "1" + "}" * 3000, "expected a mapping|fewer levels"),
    ],
)
def test_what_does_not_say_how_routers_run_is_refused(flag: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        configuration.parse([flag, text])
    assert flag in str(error.value)


def test_volumes_that_have_our_group_are_left_alone() -> None:
    """Unless the user names a group, or says it himself: then it is as he says."""

    def security(objects: dict[str, Object]) -> Object:
        context: Object = objects["Deployment"]["spec"]["template"]["spec"]["securityContext"]
        return {name: value for name, value in context.items() if name.startswith("fsGroup")}

    ours = {"fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch"}
    assert security(of_router(CONFIG)) == ours
    for said, objects in (
        ({}, ours),
        ({"runAsUser": 7}, ours),
        ({"fsGroup": 7}, {"fsGroup": 7}),
        ({"fsGroupChangePolicy": "Always"}, ours | {"fsGroupChangePolicy": "Always"}),
    ):
        assert security(of_backend(CONFIG, podTemplate={"securityContext": said})) == objects


def test_no_image_has_a_name_that_somebody_may_own() -> None:
    """Whoever does not say which gets those that are on the node, and nothing of a registry's."""
    render = configuration.parse([]).render
    assert render.sidecar_image.startswith("localhost/")
    assert render.router_image.startswith("localhost/")


def test_the_configuration_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the chart hands it over: environment variables with JSON."""
    monkeypatch.setenv("PENSTOCK_METRICS_FROM", '[{"podSelector":{}}]')
    monkeypatch.setenv("PENSTOCK_ROUTERS_FROM", "[]")
    monkeypatch.setenv("PENSTOCK_BACKENDS_FROM", "[]")
    monkeypatch.setenv("PENSTOCK_NETWORK_POLICIES", "false")
    monkeypatch.setenv("PENSTOCK_IMAGE_PULL_SECRETS", "a,b")
    render = configuration.parse([]).render
    assert render.metrics_from == ({"podSelector": {}},)
    assert (render.routers_from, render.backends_from, render.network_policies) == ((), (), False)
    assert render.image_pull_secrets == ("a", "b")
    assert configuration.parse(["--backends-from", '[{"podSelector": {}}]']).render.backends_from == (
        {"podSelector": {}},
    )


def test_tracing_is_environment_of_the_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint by its own value, all else by name; an endpoint that both name is the one of its own."""
    assert configuration.parse([]).render.tracing == {}
    monkeypatch.setenv("PENSTOCK_TRACING_ENDPOINT", "http://collector.o:4318")
    more = '{"OTEL_TRACES_SAMPLER": "always_off", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other"}'
    render = configuration.parse(["--tracing-environment", more]).render
    assert render.tracing == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.o:4318",
        "OTEL_TRACES_SAMPLER": "always_off",
    }
    wanted = ModelBackend.parse(
        {"metadata": {"name": "b", "uid": "b"}, "spec": {"model": {"container": {"image": "i"}}}}
    )
    env = sidecar.container(wanted, config=render, drain_secret="s")["env"]
    assert [variable for variable in env if variable["name"].startswith("OTEL")] == [
        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.o:4318"},
        {"name": "OTEL_TRACES_SAMPLER", "value": "always_off"},
    ]


def test_the_access_log_is_an_argument_of_routers_and_sidecars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is off nothing says so: a template stays what it was."""
    assert "--access-log" not in pods.reporting(configuration.parse([]).render)
    monkeypatch.setenv("PENSTOCK_ACCESS_LOG", "0.01")
    render = configuration.parse([]).render
    wanted = ModelBackend.parse(
        {"metadata": {"name": "b", "uid": "b"}, "spec": {"model": {"container": {"image": "i"}}}}
    )
    words = sidecar.container(wanted, config=render, drain_secret="s")["args"]
    assert words[words.index("--access-log") + 1] == "0.01"
    assert pods.reporting(render)["--access-log"] == "0.01"
    with pytest.raises(ConfigError, match="--access-log"):
        configuration.parse(["--access-log", "2"])


@pytest.mark.parametrize("text", ["", "[]", "null", '{"OTEL_A": 1}', '{"PATH": "/"}', '{"OTEL_A\\n": "1"}'])
def test_variables_that_are_not_opentelemetrys_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--tracing-environment: expected (JSON|a JSON object|names of)"):
        configuration.parse(["--tracing-environment", text])


@pytest.mark.parametrize("text", ["collector:4318", "grpc://collector:4317", "http://a b"])
def test_an_endpoint_that_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--tracing-endpoint"):
        configuration.parse(["--tracing-endpoint", text])


def test_what_is_on_is_switched_off_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also against the environment, which is how the chart says it."""
    configured = configuration.parse([])
    assert (configured.network_policies, configured.dry_run) == (True, False)
    assert configuration.parse(["--no-network-policies"]).network_policies is False
    monkeypatch.setenv("PENSTOCK_NETWORK_POLICIES", "true")
    assert configuration.parse(["--no-network-policies"]).network_policies is False
    monkeypatch.setenv("PENSTOCK_NETWORK_POLICIES", "false")
    assert configuration.parse([]).network_policies is False
    assert configuration.parse(["--network-policies"]).network_policies is True


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[{}]", "[", "null"])
@pytest.mark.parametrize("flag", ["--metrics-from", "--egress"])
def test_peers_and_rules_that_are_none_are_refused(flag: str, text: str) -> None:
    """Plugins read an empty peer as all or as none; an empty rule as everything."""
    with pytest.raises(ConfigError, match=rf"^{flag}: expected (a )?JSON"):
        configuration.parse([flag, text])
