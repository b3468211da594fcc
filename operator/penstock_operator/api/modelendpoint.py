"""ModelEndpoint: a stable name and URL that clients call."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from penstock_operator.api.base import Part, Resource
from penstock_operator.api.conditions import Status
from penstock_operator.api.core import Resources
from penstock_operator.api.fields import (
    Bytes,
    Duration,
    Form,
    Name,
    bytes_rule,
    cel,
    duration_rule,
    map_list,
    quoted,
    rules,
)
from penstock_operator.api.match import FieldName
from penstock_wire.control.router_settings import ORIGIN_PATTERN, Method


class ColdStart(Part):
    """The handling of requests while no pod of the backend is ready."""

    timeout: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("0s", "1h")),
            description="How long a request waits for a ready pod, or for room in one, before it is answered "
            "503. Default 120s.",
        ),
    ] = "120s"
    max_pending: Annotated[
        int,
        Field(
            ge=0,
            le=100_000,
            description="Requests that may wait so in each router pod; more are refused with 503 at once. "
            "Default 1000.",
        ),
    ] = 1000


class Timeouts(Part):
    """Limits on the parts of an answer and on the whole, in addition to `timeout`."""

    first_byte: Annotated[
        Duration | None,
        Field(
            json_schema_extra=rules(duration_rule("1ms", "24h")),
            description="From when a request was sent until the head of its answer, or until the end of a "
            "short one. At most timeout, which is the default.",
        ),
    ] = None
    idle: Annotated[
        Duration | None,
        Field(
            json_schema_extra=rules(duration_rule("1ms", "24h")),
            description="Between two pieces of a longer answer, and without a byte either way after a switch "
            "of protocols. Default: what the request had for its head; 10m after a switch.",
        ),
    ] = None
    total: Annotated[
        Duration | None,
        Field(
            json_schema_extra=rules(duration_rule("1ms", "168h")),
            description="From a request's arrival to the end of its answer, or of its WebSocket, the time in "
            "which it waits for a pod included. Default: no limit.",
        ),
    ] = None


Origin = Annotated[
    str,
    Field(
        max_length=256,
        json_schema_extra=rules(
            cel(
                f"self == '*' || self.matches(r'{ORIGIN_PATTERN}')",
                "expected * or an origin as browsers send it, such as https://app.example or "
                "http://localhost:3000",
                expression="'expected * or an origin as browsers send it, such as https://app.example or "
                "http://localhost:3000, found ' + self",
            )
        ),
    ),
]
"""The origin of web pages, or `*`."""


class Cors(Part):
    """The web pages that may call the endpoint from a browser and read its answers."""

    origins: Annotated[
        tuple[Origin, ...],
        Field(
            min_length=1,
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="Origins of the pages, as browsers send them (https://app.example, without a path); "
            "* = all pages, without credentials.",
        ),
    ]
    headers: Annotated[
        tuple[FieldName, ...],
        Field(
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="Request fields that pages may send beside Content-Type, X-Request-Id and those of "
            "Penstock, such as Authorization. Default: none.",
        ),
    ] = ()
    credentials: Annotated[
        bool,
        Field(
            description="Whether pages may send cookies and other credentials of the browser. Default false."
        ),
    ] = False


class AffinityCookie(Part):
    """The cookie that brings a client back to its pod; the router sets it."""

    name: Annotated[FieldName, Field(description="Name of the cookie.")]
    ttl: Annotated[
        Duration | None,
        Field(
            json_schema_extra=rules(duration_rule("1s", "8760h")),
            description="How long clients keep it (Max-Age). Default: as long as their session.",
        ),
    ] = None


class SessionAffinity(Part):
    """The header or cookie that sends requests to the same backend and the same pod."""

    header: Annotated[
        FieldName | None,
        Field(description="Name of a header field: requests with the same value. This or cookie."),
    ] = None
    cookie: Annotated[
        AffinityCookie | None,
        Field(
            description="A cookie: requests of the same client. Who sends none gets one with the answer; it "
            "does not reach the model. This or header."
        ),
    ] = None


_STATIC = Form(r"^/[^?#]*$", "expected a path that begins with /, without ? and #, such as /healthz")


class StaticAnswer(Part):
    """An answer that the router gives itself."""

    path: Annotated[
        str,
        Field(
            max_length=256,
            json_schema_extra=rules(_STATIC.rule),
            description="The path, without the endpoint's route; whole and exact, whatever the query.",
        ),
        AfterValidator(_STATIC.check),
    ]
    status: Annotated[int, Field(ge=200, le=599, description="HTTP status. Default 200.")] = 200
    body: Annotated[
        str,
        Field(
            max_length=4096,
            description="The body: application/json where it is an object or a list of JSON, else "
            "text/plain. Default: none.",
        ),
    ] = ""


class EndpointRouter(Part):
    """The routers that serve the endpoint."""

    dedicated: Annotated[
        bool,
        Field(
            description="Whether the endpoint has routers of its own, which serve nothing else, and those of "
            "the namespace do not serve it: its Service leads there, and the front door does not. "
            "Default false."
        ),
    ] = False
    replicas: Annotated[
        int | None,
        Field(
            ge=1,
            le=100,
            description="Pods of its own router. Default: as many as the installation says of a "
            "namespace's (router.replicas).",
        ),
    ] = None
    resources: Annotated[
        Resources | None,
        Field(
            description="Compute resources of each of them. Default: as the installation says of a "
            "namespace's (router.resources)."
        ),
    ] = None


_ROUTE = Form(
    r"^(/.*)?$",
    "expected a path prefix that begins with /, such as /v1/digits, without //, ?, #, % and blanks",
)

_Route = Annotated[
    str,
    Field(
        max_length=256,
        json_schema_extra=rules(
            cel(
                f"{_ROUTE.matches} && !self.contains('//') && !self.contains('?') && "
                "!self.contains('#') && !self.contains('%') && !self.contains(' ')",
                _ROUTE.expected,
                expression=f"{quoted(_ROUTE.expected + ', found ')} + self",
            ),
            cel(
                "self != '/-' && !self.startsWith('/-/')",
                "expected a path outside /-/, which the router keeps for itself",
                expression="'expected a path outside /-/, which the router keeps for itself, found ' + self",
            ),
        ),
    ),
    AfterValidator(_ROUTE.check),
]


class ModelEndpointSpec(Part):
    """The endpoint that clients call, and the backend that serves it."""

    route: Annotated[
        _Route | None,
        Field(
            description="Path prefix of this endpoint at the namespace's front door (Service "
            "penstock-router): matched on whole segments, the longest wins, and stripped. Empty = not served "
            "there. Two endpoints of one route: the oldest serves. Default, when absent: /<name of the "
            "endpoint>.",
        ),
    ] = None
    methods: Annotated[
        tuple[Method, ...],
        Field(
            max_length=7,
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="HTTP methods that the endpoint takes; others are answered 405, but for the "
            "preflights of browsers. Default: any.",
        ),
    ] = ()
    backend: Annotated[
        Name,
        Field(
            description="Name of the ModelBackend that serves, in the same namespace. A TrafficSplit that "
            "names this endpoint overrides it."
        ),
    ]
    timeout: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("1ms", "24h")),
            description="Time for a request that names no timeout of its own, and the most that one may ask "
            "for. Default 30s.",
        ),
    ] = "30s"
    timeouts: Annotated[
        Timeouts | None,
        Field(description="Further limits of the time of an answer. Default: none beside timeout."),
    ] = None
    max_body_bytes: Annotated[
        Annotated[Bytes, Field(json_schema_extra=bytes_rule("1", "1Pi"))] | None,
        Field(
            description="Bytes of a request's body at most, as a quantity such as 10Mi or a number of bytes; "
            "a longer one is answered 413. Default: no limit at the endpoint (a sidecar takes at most 64 MiB "
            "of what it batches).",
        ),
    ] = None
    retries: Annotated[
        int,
        Field(
            ge=0,
            le=10,
            description="Further tries on other pods, only where the request was surely not executed. "
            "Default 1.",
        ),
    ] = 1
    cold_start: Annotated[
        ColdStart,
        Field(description="What happens to requests while no pod of the backend is ready, or none has room."),
    ] = ColdStart()
    cors: Annotated[
        Cors | None,
        Field(
            json_schema_extra=rules(
                cel(
                    "!self.credentials || !self.origins.exists(origin, origin == '*')",
                    "expected false where origins has *, found true: name the origins whose pages may send "
                    "credentials",
                    path=".credentials",
                )
            ),
            description="Which web pages may call the endpoint from a browser and read its answers. The "
            "router answers their preflights. Default: what the model answers passes as it is, and pages can "
            "read no answer of Penstock's own.",
        ),
    ] = None
    session_affinity: Annotated[
        SessionAffinity | None,
        Field(
            json_schema_extra=rules(
                cel(
                    "has(self.header) != has(self.cookie)",
                    "expected one of header and cookie",
                    expression="'expected one of header and cookie, found ' + "
                    "(has(self.header) ? 'both' : 'none')",
                )
            ),
            description="By what requests come to the same backend and pod, as long as it has room and is "
            "there. Default: by x-penstock-shard-key, else x-penstock-model-id, which a client may send to "
            "any endpoint.",
        ),
    ] = None
    access_log_percent: Annotated[
        int | None,
        Field(
            ge=0,
            le=100,
            description="Of the endpoint's requests, so many percent are logged by its routers, as soon as "
            "they have the settings. Default: as the installation says (accessLog.share).",
        ),
    ] = None
    static: Annotated[
        tuple[
            Annotated[
                StaticAnswer,
                Field(
                    json_schema_extra=rules(
                        cel(
                            "!(self.status in [204, 205, 304]) || !has(self.body) || self.body == ''",
                            "expected no body with status 204, 205 or 304, found one",
                            path=".body",
                        )
                    )
                ),
            ],
            ...,
        ],
        Field(
            default=(),
            max_length=16,
            json_schema_extra=map_list("path"),
            description="Answers to GET and HEAD that the router gives itself, as to the probes of a load "
            "balancer: no model is asked, and none is woken.",
        ),
    ] = ()
    router: Annotated[
        EndpointRouter | None,
        Field(
            json_schema_extra=rules(
                cel(
                    "self.dedicated || !(has(self.replicas) || has(self.resources))",
                    "expected dedicated: true beside replicas or resources, which are of the endpoint's own "
                    "routers",
                )
            ),
            description="Which routers serve the endpoint. Default: those of the namespace, with all its "
            "other endpoints.",
        ),
    ] = None


class ServingBackend(Part):
    """A backend that serves an endpoint."""

    name: Annotated[str, Field(description="Name of the ModelBackend.")]
    weight: Annotated[
        int, Field(description="Its share of the requests, relative to the others' weights.")
    ] = 1
    ready: Annotated[bool, Field(description="Whether at least one of its pods is ready.")] = False


class ModelEndpointStatus(Status):
    """The observed state of a ModelEndpoint."""

    url: Annotated[str | None, Field(description="Where clients in the cluster call.")] = None
    shares: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="The backends and their shares of the requests, in one line: one 90%, two 10%.",
        ),
    ] = None
    backends: Annotated[
        tuple[ServingBackend, ...],
        Field(
            default=(),
            json_schema_extra=map_list("name"),
            description="The backends that share the requests now.",
        ),
    ] = ()


class ModelEndpoint(Resource):
    """A stable name and URL that clients call."""

    plural: ClassVar[str] = "modelendpoints"
    rules: ClassVar[tuple[dict[str, str], ...]] = (
        cel(
            "!self.metadata.name.endsWith('-backend') && !self.metadata.name.endsWith('-router')",
            "metadata.name: expected a name that does not end with -backend or -router, which are Penstock's "
            "own",
            expression="'metadata.name: expected a name that does not end with -backend or -router, which "
            "are Penstock\\'s own, found ' + self.metadata.name",
        ),
        cel(
            "!has(self.spec.timeouts) || !has(self.spec.timeouts.firstByte) || "
            "duration(self.spec.timeouts.firstByte) <= duration(self.spec.timeout)",
            "expected at most what timeout says",
            expression="'expected at most what timeout says, ' + self.spec.timeout + ', found ' + "
            "self.spec.timeouts.firstByte",
            path=".spec.timeouts.firstByte",
        ),
    )

    spec: Annotated[ModelEndpointSpec, Field(description="Where clients call, and who serves them.")]
    status: Annotated[
        ModelEndpointStatus, Field(description="What Penstock observed. Written by the operator alone.")
    ] = ModelEndpointStatus()
