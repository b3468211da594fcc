"""Random specs of ModelBackends as users write them, with every spelling that the API server rewrites.

Quantities in several spellings, empty strings, lists and maps, zeros and `false`, defaults said and unsaid.
All of it is valid (what the apiserver refuses is another test's), and no image is `:latest`:
a pull policy that Kubernetes chose by the tag stays when the tag changes, whichever client applies.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Obj = dict[str, Any]
Values = st.SearchStrategy[Any]

WORDS = st.sampled_from(["", "a", "0", "false", "null", "a b", "é", "$(POD)", "x" * 600])
LABELS = st.dictionaries(
    st.sampled_from(["team", "example.com/tier", "zone"]), st.sampled_from(["", "a", "b-1"]), max_size=2
)
CPU = st.sampled_from(["0.5", "500m", ".25", "1000m", "1", 1, 2, "2.0", "0", 0, "1e0"])
MEMORY = st.sampled_from(["1024Mi", "1Gi", "0.5Gi", "1073741824", 67108864, "1.5Gi", "128M", "1e9"])
SMALL = st.integers(min_value=0, max_value=3)
POSITIVE = st.integers(min_value=1, max_value=9)
MAYBE = st.booleans()


def some(**members: Values) -> Values:
    """A map with any of these members, each of them or not."""
    return st.fixed_dictionaries({}, optional=dict(members))


def named(prefix: str, element: Values, most: int) -> Values:
    """A list of maps that have names of their own, in any order."""

    def give(elements: list[Obj]) -> list[Obj]:
        return [{"name": f"{prefix}{index}", **element} for index, element in enumerate(elements)]

    return st.lists(element, max_size=most).map(give).flatmap(st.permutations).map(list)


RESOURCES = st.one_of(
    some(requests=some(cpu=CPU, memory=MEMORY)),
    some(limits=some(**{"cpu": CPU, "memory": MEMORY, "nvidia.com/gpu": SMALL})),
    st.just({"requests": {"cpu": "0.1", "memory": "64Mi"}, "limits": {"cpu": "1500m", "memory": "2048Mi"}}),
)

FROM = st.sampled_from(
    [
        {"fieldRef": {"fieldPath": "metadata.name"}},
        {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
        {"secretKeyRef": {"name": "s", "key": "k", "optional": False}},
        {"configMapKeyRef": {"name": "c", "key": "k"}},
        {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "0"}},
        {"resourceFieldRef": {"containerName": "model", "resource": "limits.memory", "divisor": "1024Ki"}},
    ]
)
ENV = named("VAR_", st.one_of(some(value=WORDS), st.fixed_dictionaries({"valueFrom": FROM})), 4)
ENV_FROM = st.lists(
    st.sampled_from(
        [
            {"configMapRef": {"name": "c"}},
            {"secretRef": {"name": "s", "optional": True}, "prefix": "S_"},
            {"configMapRef": {"name": "d", "optional": False}, "prefix": ""},
        ]
    ),
    max_size=2,
)

_TIMES = {
    "initialDelaySeconds": SMALL,
    "timeoutSeconds": POSITIVE,
    "periodSeconds": POSITIVE,
    "failureThreshold": POSITIVE,
}
_ASKS = st.one_of(
    some(scheme=st.sampled_from(["HTTP", "HTTPS"]), path=st.sampled_from(["", "/", "/up"])).map(
        lambda fields: {"httpGet": {"port": 8080, **fields}}
    ),
    st.just({"httpGet": {"port": "model", "httpHeaders": [{"name": "x-a", "value": ""}]}}),
    st.sampled_from([{"tcpSocket": {"port": 8080}}, {"exec": {"command": ["true", ""]}}]),
    some(service=st.sampled_from(["", "health"])).map(lambda fields: {"grpc": {"port": 8080, **fields}}),
)


def probe(*, success: bool = True) -> Values:
    """A probe.

    Args:
        success: whether it may have a threshold of successes, which only readiness has.
    """
    times = some(**_TIMES, **({"successThreshold": POSITIVE} if success else {}))
    return st.tuples(_ASKS, times).map(lambda parts: parts[0] | parts[1])


SECURITY = some(
    runAsUser=st.sampled_from([0, 1000]),
    runAsNonRoot=MAYBE,
    readOnlyRootFilesystem=MAYBE,
    privileged=st.just(False),
    capabilities=some(drop=st.sampled_from([[], ["ALL"]]), add=st.sampled_from([[], ["NET_BIND_SERVICE"]])),
)
POD_SECURITY = some(
    runAsUser=st.sampled_from([0, 1000]),
    fsGroup=st.sampled_from([0, 2000]),
    supplementalGroups=st.lists(POSITIVE, max_size=2, unique=True),
    sysctls=st.sampled_from([[], [{"name": "net.ipv4.tcp_syncookies", "value": "0"}]]),
    fsGroupChangePolicy=st.sampled_from(["OnRootMismatch", "Always"]),
)

VOLUME = st.one_of(
    some(medium=st.sampled_from(["", "Memory"]), sizeLimit=MEMORY).map(lambda fields: {"emptyDir": fields}),
    some(
        defaultMode=st.sampled_from([0, 420, 256]),
        optional=MAYBE,
        items=st.sampled_from([[], [{"key": "k", "path": "p"}, {"key": "l", "path": "q", "mode": 256}]]),
    ).map(lambda fields: {"configMap": {"name": "c", **fields}}),
    some(optional=MAYBE).map(lambda fields: {"secret": {"secretName": "s", **fields}}),
    some(readOnly=MAYBE).map(lambda fields: {"persistentVolumeClaim": {"claimName": "p", **fields}}),
    st.just(
        {
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "t"}},
                    {
                        "downwardAPI": {
                            "items": [
                                {
                                    "path": "cpu",
                                    "resourceFieldRef": {
                                        "containerName": "model",
                                        "resource": "limits.cpu",
                                        "divisor": "0.001",
                                    },
                                }
                            ]
                        }
                    },
                ]
            }
        }
    ),
    some(readOnly=MAYBE).map(
        lambda fields: {
            "csi": {"driver": "csi.example.com", "volumeAttributes": {"a": ""}, **fields},
        }
    ),
)
_MOUNTS = st.permutations(
    [
        {"name": "vol0", "mountPath": "/v0", "readOnly": False},
        {"name": "vol0", "mountPath": "/v0/sub", "subPath": "", "readOnly": True},
        {"name": "vol1", "mountPath": "/v1"},
    ]
)

_SELECTED = st.sampled_from(
    [
        {},
        {"matchLabels": {"a": "b"}},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", ""]}]},
        {"matchLabels": {}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
    ]
)
_NODES = st.sampled_from(
    [
        [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100", "h100"]}]}],
        [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}],
        [{"matchExpressions": [{"key": "slow", "operator": "DoesNotExist", "values": []}]}],
    ]
)
_PODS = _SELECTED.map(
    lambda fields: {"labelSelector": fields, "topologyKey": "kubernetes.io/hostname", "namespaces": []}
)
AFFINITY = some(
    nodeAffinity=_NODES.map(
        lambda terms: {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    ),
    podAntiAffinity=st.one_of(
        _PODS.map(lambda term: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}),
        _PODS.map(
            lambda term: {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "podAffinityTerm": term}]
            }
        ),
    ),
    podAffinity=st.just({}),
)
TOLERATIONS = st.lists(
    st.sampled_from(
        [
            {"operator": "Exists"},
            {"key": "gpu", "operator": "Equal", "value": "", "effect": "NoSchedule"},
            {"key": "gpu", "value": "a100"},
            {"key": "gone", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
        ]
    ),
    max_size=3,
)
_SPREAD = st.lists(
    st.sampled_from(["kubernetes.io/hostname", "topology.kubernetes.io/zone"]), unique=True, max_size=2
).map(
    lambda keys: [
        {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        for key in keys
    ]
)

_PLACED: dict[str, st.SearchStrategy[Any]] = {
    "nodeSelector": LABELS,
    "affinity": AFFINITY,
    "tolerations": TOLERATIONS,
    "topologySpreadConstraints": _SPREAD,
    "priorityClassName": st.sampled_from(["", "high"]),
}
SCHEDULING = some(**_PLACED).map(lambda fields: {name: value for name, value in fields.items() if value})
"""Random rules for the nodes of pods."""

_FURTHER = st.tuples(
    some(
        env=ENV,
        envFrom=ENV_FROM,
        resources=RESOURCES,
        securityContext=SECURITY,
        volumeMounts=_MOUNTS,
        workingDir=st.sampled_from(["", "/x"]),
        stdin=MAYBE,
        imagePullPolicy=st.sampled_from(["Always", "Never"]),
        ports=st.permutations(
            [
                {"containerPort": 9000, "name": "a"},
                {"containerPort": 9001, "name": "b", "protocol": "TCP"},
                {"containerPort": 9000, "protocol": "UDP"},
            ]
        ),
        terminationMessagePath=st.sampled_from(["", "/dev/termination-log", "/x"]),
    ),
    st.sampled_from(["i:1", "example.com/i:1"]),
).map(lambda parts: {"image": parts[1], **parts[0]})

_CONTAINER = st.tuples(
    some(
        command=st.lists(WORDS, max_size=2),
        args=st.lists(WORDS, max_size=2),
        env=ENV,
        envFrom=ENV_FROM,
        resources=RESOURCES,
        volumeMounts=_MOUNTS,
        securityContext=SECURITY,
        imagePullPolicy=st.sampled_from(["Always", "IfNotPresent", "Never"]),
        startupProbe=probe(success=False),
        livenessProbe=probe(success=False),
        readinessProbe=probe(),
    ),
    st.sampled_from(["m:1", "example.com/m:1"]),
).map(lambda parts: {"container": {"image": parts[1], **parts[0]}})
_PYTHON = some(env=ENV, resources=RESOURCES, volumeMounts=_MOUNTS, initKwargs=st.just({"a": ""})).map(
    lambda fields: {"python": {"target": "m:M", "image": "m:1", **fields}}
)

_TEMPLATE = st.tuples(
    some(
        labels=LABELS,
        annotations=st.dictionaries(st.sampled_from(["a", "example.com/b"]), WORDS, max_size=2),
        initContainers=named("before", _FURTHER, 2),
        containers=named("beside", _FURTHER, 2),
        **_PLACED,
        runtimeClassName=st.just("gvisor"),
        schedulerName=st.sampled_from(["default-scheduler", "volcano"]),
        resourceClaims=st.just([{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]),
        hostAliases=st.permutations([{"ip": "10.0.0.8", "hostnames": ["a"]}, {"ip": "10.0.0.9"}]),
        dnsPolicy=st.sampled_from(["ClusterFirst", "Default"]),
        dnsConfig=some(searches=st.just(["a.example"]), options=st.just([{"name": "ndots", "value": "1"}])),
        imagePullSecrets=st.permutations([{"name": "one"}, {"name": "two"}]),
        serviceAccountName=st.just("own"),
        securityContext=POD_SECURITY,
    ),
    VOLUME,
    VOLUME,
).map(lambda parts: parts[0] | {"volumes": [{"name": "vol0", **parts[1]}, {"name": "vol1", **parts[2]}]})

SPECS = st.tuples(
    st.one_of(_CONTAINER, _CONTAINER, _PYTHON),
    _TEMPLATE,
    some(
        drain=some(propagationDelay=st.sampled_from(["0s", "7s"]), timeout=st.sampled_from(["1m", "90s"])),
        rollout=st.sampled_from([{"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 2}]),
        disruptionBudget=st.sampled_from([{"maxUnavailable": 1}, {"minAvailable": 1}]),
        warmup=st.just({"requests": [{"path": "/", "body": {"instances": [1]}}], "timeout": "10s"}),
        batching=some(maxBatchSize=POSITIVE, batchWaitTimeout=st.sampled_from(["0ms", "5ms"])),
        sidecar=some(resources=RESOURCES, logLevel=st.just("debug")),
        userConfig=st.sampled_from([{}, {"a": ""}, [], 0]),
    ),
).map(lambda parts: {"model": parts[0], "podTemplate": parts[1], **parts[2]})
"""Specs of a ModelBackend, but for the replicas."""
