"""TrafficSplit: how an endpoint's requests are shared among backends."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from penstock_operator.api.base import Part, Resource
from penstock_operator.api.conditions import Status
from penstock_operator.api.fields import Name, cel, map_list, rules
from penstock_operator.api.match import FieldName, MatchList
from penstock_operator.api.mirror_compare import MirrorCompare
from penstock_operator.api.strategy import ReleaseState, Strategy, Verdict
from penstock_wire.control.traffic_rules import OnMissing


class SplitBackend(Part):
    """One backend and its share."""

    name: Annotated[Name, Field(description="Name of the ModelBackend, in the same namespace.")]
    weight: Annotated[
        int,
        Field(
            ge=0,
            le=1_000_000,
            description="Its share of the requests, relative to the sum of all weights. 0 = none.",
        ),
    ]
    match: Annotated[
        MatchList,
        Field(
            description="Rules: a request that matches one of them is this backend's, whatever the weights. "
            "The first backend of the list with such a rule gets it; all other requests are shared by "
            "weight."
        ),
    ] = ()


class SplitMirror(Part):
    """A backend that gets copies of requests; its answers go to no client."""

    name: Annotated[Name, Field(description="Name of the ModelBackend, in the same namespace.")]
    percent: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="Of the requests, of those that match where there are rules, so many percent are "
            "copied. 0 = none.",
        ),
    ] = 100
    match: Annotated[
        MatchList,
        Field(
            description="Rules: only requests that match one of them are copied. Absent or empty: a request "
            "is copied whatever it says."
        ),
    ] = ()
    drop_headers: Annotated[
        tuple[FieldName, ...],
        Field(
            max_length=64,
            json_schema_extra={"x-kubernetes-list-type": "set"},
            description="Header fields of requests, in any case, that the copies do not have, such as "
            "Authorization and Cookie. Default: none: a copy has the credentials of its request.",
        ),
    ] = ()
    compare: Annotated[
        MirrorCompare | None,
        Field(
            description="Compares the mirror's answers with the served ones: status, then JSON by path. "
            "Absent: they are not compared."
        ),
    ] = None


_SERVES_TOO = "self.backends.exists(b, b.name == m.name)"
"""Whether a mirror `m` is among the backends, in CEL."""
_BESIDE = "(b.weight > 0 && !(b.name in [self.strategy.stable, self.strategy.candidate]))"
"""Whether a backend `b` has a weight that is not allowed with a strategy, in CEL."""
_COPIED = "(has(s.mirror) && s.mirror > 0)"
"""Whether a step `s` copies requests, in CEL."""


def _among_backends(field: str) -> dict[str, str]:
    """The rule that a field of `strategy` names one of `backends`."""
    return cel(
        f"!has(self.strategy) || self.backends.exists(b, b.name == self.strategy.{field})",
        "expected one of backends",
        expression="'expected one of backends %s, found %s'"
        f".format([self.backends.map(b, b.name), self.strategy.{field}])",
        path=f".strategy.{field}",
    )


class TrafficSplitSpec(Part):
    """An endpoint, and the shares of its requests that backends serve."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                f"!has(self.mirrors) || !self.mirrors.exists(m, {_SERVES_TOO})",
                "expected mirrors that are not among backends",
                expression="'expected mirrors that are not among backends, found %s in both lists'"
                f".format([self.mirrors.filter(m, {_SERVES_TOO}).map(m, m.name)])",
                path=".mirrors",
            ),
            _among_backends("stable"),
            _among_backends("candidate"),
            cel(
                f"!has(self.strategy) || !self.backends.exists(b, {_BESIDE})",
                "expected weight 0 of all backends but strategy.stable and strategy.candidate",
                expression="'expected weight 0 of all backends but strategy.stable and strategy.candidate, "
                f"found %s'.format([self.backends.filter(b, {_BESIDE})"
                ".map(b, '%s with weight %d'.format([b.name, b.weight]))])",
                path=".backends",
            ),
            cel(
                f"!has(self.strategy) || !self.strategy.steps.exists(s, {_COPIED}) || "
                "!self.backends.exists(b, b.name == self.strategy.candidate && has(b.match) && "
                "b.match.size() > 0)",
                "expected no step with mirror where strategy.candidate has a match in backends: a backend "
                "gets requests or copies of them",
                expression="'expected no step with mirror where strategy.candidate has a match in backends: "
                "a backend gets requests or copies of them, found a match of %s and mirror in steps%s'"
                ".format([self.strategy.candidate, self.strategy.steps"
                f".transformList(i, s, {_COPIED}, i)])",
                path=".strategy.steps",
            ),
        )
    )

    endpoint: Annotated[
        Name,
        Field(
            description="Name of the ModelEndpoint, in the same namespace. Where two splits name one "
            "endpoint, the oldest stands."
        ),
    ]
    backends: Annotated[
        tuple[SplitBackend, ...],
        Field(
            min_length=1,
            max_length=32,
            json_schema_extra=map_list("name")
            | rules(
                cel(
                    "self.exists(b, b.weight > 0)",
                    "expected at least one backend with a weight above 0, found none",
                )
            ),
            description="The backends and their weights; names are unique, the weights are proportional.",
        ),
    ]
    mirrors: Annotated[
        tuple[SplitMirror, ...],
        Field(
            max_length=8,
            json_schema_extra=map_list("name"),
            description="Backends that get copies of requests once their answers have begun; none of them is "
            "among backends.",
        ),
    ] = ()

    on_missing: Annotated[
        OnMissing,
        Field(
            description="What becomes of the requests of a backend that does not exist. Share: the others "
            "have them, by weight. Fail: they are answered 503 at once. Default Share."
        ),
    ] = "Share"

    strategy: Annotated[
        Strategy | None,
        Field(
            description="Gives the weights of two of the backends step by step, whatever their weights above "
            "are; these hold again where it is removed. Absent: the weights are fixed."
        ),
    ] = None

    @property
    def names(self) -> tuple[str, ...]:
        """All backends that the spec names."""
        return (*[share.name for share in self.backends], *[mirror.name for mirror in self.mirrors])


class SplitWeight(Part):
    """A backend's weight: desired, applied and observed."""

    name: Annotated[str, Field(description="Name of the ModelBackend.")]
    desired: Annotated[
        int, Field(description="The weight that the spec asks for; with strategy, that of the release.")
    ]
    applied: Annotated[
        int | None,
        Field(description="The weight that all ready routers have taken up; absent until they have."),
    ] = None
    observed: Annotated[
        str | None,
        Field(
            description="Its share of the requests that the routers answered within the last minute, such as "
            "10%; absent where there were none."
        ),
    ] = None


class MirrorState(Part):
    """Counts of a mirror's copies, since the routers started or got other rules of comparison."""

    name: Annotated[str, Field(description="Name of the ModelBackend.")]
    sent: Annotated[int, Field(description="Copies that were sent.")] = 0
    dropped: Annotated[int, Field(description="Requests that were drawn and not copied.")] = 0
    mismatched_percent: Annotated[
        str | None,
        Field(description="Of the pairs of answers that were compared, so many percent differ: 0.7."),
    ] = None
    first_difference: Annotated[
        str | None,
        Field(
            max_length=512,
            description="Where the first of them differ: a path, and the types or values there.",
        ),
    ] = None
    summary: Annotated[str | None, Field(max_length=1024, description="All of it, in words.")] = None


class TrafficSplitStatus(Status):
    """The observed state of a TrafficSplit."""

    shares: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="The backends and the shares that are asked for now, by the spec or its release, in "
            "one line: one 90%, two 10%.",
        ),
    ] = None
    observed: Annotated[
        str | None,
        Field(
            max_length=4096,
            description="The shares that the routers answered within the last minute, in one line, as "
            "shares; absent where there were no requests.",
        ),
    ] = None
    weights: Annotated[
        tuple[SplitWeight, ...],
        Field(
            default=(),
            json_schema_extra=map_list("name"),
            description="The weights, asked for and taken up, and the shares that came of them.",
        ),
    ] = ()
    mirrors: Annotated[
        tuple[MirrorState, ...],
        Field(
            default=(),
            json_schema_extra=map_list("name"),
            description="What the copies for each mirror have come to.",
        ),
    ] = ()
    step: Annotated[
        int | None,
        Field(
            description="Index in strategy.steps of the release's step, from 0; their number after the last."
        ),
    ] = None
    step_of: Annotated[
        str | None,
        Field(max_length=64, description="The same for people, counted from 1, and their number: 3/6."),
    ] = None
    step_started: Annotated[
        str | None,
        Field(json_schema_extra={"format": "date-time"}, description="When this step began."),
    ] = None
    release: Annotated[
        ReleaseState | None, Field(description="How far the release by spec.strategy has come.")
    ] = None
    verdicts: Annotated[
        tuple[Verdict, ...],
        Field(
            default=(),
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
            description="What the metrics say of the candidate, in the order of strategy.analysis.metrics.",
        ),
    ] = ()
    mirrored: Annotated[
        str | None,
        Field(max_length=4096, description="The same in one line."),
    ] = None


class TrafficSplit(Resource):
    """The sharing of an endpoint's requests among backends."""

    plural: ClassVar[str] = "trafficsplits"

    spec: Annotated[TrafficSplitSpec, Field(description="Which endpoint, and who serves how much of it.")]
    status: Annotated[
        TrafficSplitStatus, Field(description="What Penstock observed. Written by the operator alone.")
    ] = TrafficSplitStatus()
