"""`strategy` of a TrafficSplit: the step-by-step takeover by a new version, and the state of its release."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from penstock_operator.api.base import Part
from penstock_operator.api.fields import Duration, Form, Name, cel, duration_rule, quoted, rules
from penstock_operator.api.mirror_compare import MirrorCompare
from penstock_wire import durations

MANUAL = "Manual"
"""A pause that lasts until a user promotes the release."""
LONGEST_PAUSE = "8760h"
"""A year; a longer pause has to be Manual."""

_PAUSE = Form(
    f"^({MANUAL}|{durations.PATTERN.removeprefix('^').removesuffix('$')})$",
    f"expected a duration of at most {LONGEST_PAUSE}, such as 10m, or {MANUAL}",
)


class ReleaseStep(Part):
    """One step: exactly one of its members is set."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "[has(self.setWeight), has(self.mirror), has(self.pause)].filter(each, each).size() == 1",
                "expected one of setWeight, mirror and pause",
                expression="'expected one of setWeight, mirror and pause, found %s'.format(["
                "[has(self.setWeight) ? 'setWeight' : '', has(self.mirror) ? 'mirror' : '', "
                "has(self.pause) ? 'pause' : ''].filter(each, each != '')])",
            )
        )
    )

    set_weight: Annotated[
        int | None,
        Field(ge=0, le=100, description="The candidate's percent of the requests; the rest is the stable's."),
    ] = None
    mirror: Annotated[
        int | None,
        Field(
            ge=0,
            le=100,
            description="Of the requests, so many percent are copied to the candidate, and the answers "
            "compared, until a step gives it requests of its own. 0 = none.",
        ),
    ] = None
    pause: Annotated[
        Annotated[
            str,
            Field(
                max_length=16,
                json_schema_extra=rules(
                    cel(
                        f"{_PAUSE.matches} && "
                        f"(self == '{MANUAL}' || duration(self) <= duration('{LONGEST_PAUSE}'))",
                        _PAUSE.expected,
                        expression=f"{quoted(_PAUSE.expected + ', found ')} + self",
                    )
                ),
            ),
            AfterValidator(_PAUSE.check),
        ]
        | None,
        Field(
            description="How long the weight stays at least, such as 10m; at most 8760h. Manual = until it "
            "is promoted.",
        ),
    ] = None


class ReleaseMetric(Part):
    """One metric by which the candidate is judged."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "self.name != 'prometheus' || (has(self.query) && self.query.trim() != '')",
                "expected PromQL where name is prometheus",
                expression="'expected PromQL where name is prometheus, found ' + "
                "(has(self.query) ? 'an empty text' : 'none')",
                path=".query",
            ),
            cel(
                "self.name == 'prometheus' || !has(self.query)",
                "expected none where name is not prometheus",
                expression="'expected none where name is not prometheus, found one of ' + self.name",
                path=".query",
            ),
            cel(
                "self.name != 'prometheus' || has(self.threshold)",
                "expected one where name is prometheus, found none: the value beyond which the candidate "
                "fails",
                path=".threshold",
            ),
            cel(
                "!(self.name in ['errorRatio', 'mismatch']) || !has(self.threshold) || self.threshold <= 1.0",
                "expected a share from 0 to 1 where name is errorRatio or mismatch",
                expression="'expected a share from 0 to 1 where name is errorRatio or mismatch, found "
                "%s for %s'.format([self.threshold, self.name])",
                path=".threshold",
            ),
            cel(
                "!has(self.quantile) || self.name == 'latency'",
                "expected none where name is not latency",
                expression="'expected none where name is not latency, found one of ' + self.name",
                path=".quantile",
            ),
        )
    )

    name: Annotated[
        Literal["errorRatio", "latency", "mismatch", "prometheus"],
        Field(
            description="errorRatio: answers with a status of 500 or above, and refusals. latency: time to "
            "the first byte of an answer. mismatch: copies whose answers differ. prometheus: a query."
        ),
    ]
    quantile: Annotated[
        float | None,
        Field(ge=0.5, le=0.999, description="The quantile of latency that counts. Default 0.99."),
    ] = None
    threshold: Annotated[
        float | None,
        Field(
            ge=0,
            description="The candidate fails where its value is above this: a share from 0 to 1 for "
            "errorRatio and mismatch, seconds for latency, the query's value for prometheus. Absent: it is "
            "held against the stable alone; for mismatch 0.01.",
        ),
    ] = None
    query: Annotated[
        str | None,
        Field(max_length=2048, description="PromQL whose result is one number."),
    ] = None
    failure_limit: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="In so many intervals the value may be above threshold before the candidate fails. "
            "Default 0. What is held against the stable needs no limit: the test allows for chance.",
        ),
    ] = 0

    @property
    def label(self) -> str:
        """The metric's name in status, with its quantile."""
        if self.name == "latency":
            return f"latency p{100 * (self.quantile or 0.99):g}"
        return self.name


class Analysis(Part):
    """The metrics by which the candidate is judged, and how often."""

    interval: Annotated[
        Duration,
        Field(
            json_schema_extra=rules(duration_rule("5s", "1h")),
            description="How often. Default 30s.",
        ),
    ] = "30s"
    metrics: Annotated[
        tuple[ReleaseMetric, ...],
        Field(
            max_length=8,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
            description="Default: errorRatio and latency, against the stable. Empty: nothing is judged.",
        ),
    ] = (ReleaseMetric(name="errorRatio"), ReleaseMetric(name="latency"))
    compare: Annotated[
        MirrorCompare | None,
        Field(description="How the answers to copies are compared in steps with mirror."),
    ] = None


_BEFORE = (
    "self.exists(j, w, j < i && has(w.setWeight) && w.setWeight > 0 && "
    "!self.exists(k, z, j < k && k < i && has(z.setWeight) && z.setWeight == 0))"
)
_COPIED_TOO = f"(has(s.mirror) && s.mirror > 0 && {_BEFORE})"
"""Whether a step `s`, number `i`, copies requests to a candidate that earlier steps gave requests, in CEL."""
_MISMATCH = "self.analysis.metrics.exists(m, m.name == 'mismatch')"
_MIRROR_FIRST = "expected mirror above 0 only while the candidate has weight 0 by the steps before"


class Strategy(Part):
    """The takeover by the candidate from the stable. Penstock never writes the spec."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel("self.stable != self.candidate", "expected two backends, found stable and candidate alike"),
            cel(
                f"!{_MISMATCH} || self.steps.exists(s, has(s.mirror) && s.mirror > 0)",
                "expected a step with mirror above 0 beside the metric mismatch, found none",
                path=".analysis.metrics",
            ),
        )
    )

    stable: Annotated[Name, Field(description="The ModelBackend that serves now; one of backends.")]
    candidate: Annotated[Name, Field(description="The ModelBackend that is to take over; one of backends.")]
    steps: Annotated[
        tuple[ReleaseStep, ...],
        Field(
            min_length=1,
            max_length=32,
            json_schema_extra=rules(
                cel(
                    f"!self.exists(i, s, {_COPIED_TOO})",
                    _MIRROR_FIRST,
                    expression=f"{quoted(_MIRROR_FIRST + ', found it in steps%s')}.format([self"
                    f".transformList(i, s, {_COPIED_TOO}, i)])",
                ),
                x_kubernetes_list_type="atomic",
            ),
            description="One after the other; after the last the candidate gets all requests.",
        ),
    ]
    analysis: Annotated[
        Analysis, Field(description="By what the candidate is judged before each further step.")
    ] = Analysis()
    on_failure: Annotated[
        Literal["Rollback", "Pause"],
        Field(
            description="Where the candidate fails. Rollback: the stable gets all requests at once. Pause: "
            "the weights stay until a user promotes or aborts the release. Default Rollback."
        ),
    ] = "Rollback"
    promotion: Annotated[
        Literal["Auto", "Manual"],
        Field(
            description="After the last step. Auto: the candidate gets all requests. Manual: once a user "
            "promotes it. Default Auto."
        ),
    ] = "Auto"


class Verdict(Part):
    """The result of one metric for the candidate."""

    metric: Annotated[str, Field(max_length=128, description="Which: its name, latency with its quantile.")]
    verdict: Annotated[
        Literal["Pass", "Fail", "Waiting", "Inconclusive"],
        Field(
            description="Waiting: there is too little evidence yet, or no value. Inconclusive: it was so "
            "when the release ended."
        ),
    ]
    message: Annotated[
        str, Field(max_length=512, description="The numbers in words, and what is missing.")
    ] = ""
    fail_percent: Annotated[
        int | None,
        Field(
            ge=0,
            le=100,
            description="How much of the evidence that Fail takes there is. Absent for prometheus.",
        ),
    ] = None
    pass_percent: Annotated[
        int | None,
        Field(ge=0, le=100, description="How much of the evidence that Pass takes there is, as failPercent."),
    ] = None
    state: Annotated[
        str,
        Field(max_length=1024, description="The evidence so far, for the operator that goes on from here."),
    ] = ""


Phase = Literal["Progressing", "Paused", "Promoted", "RolledBack"]


class ReleaseState(Part):
    """The progress of a release: all that an operator needs to continue after a crash."""

    stable: Annotated[str, Field(description="strategy.stable when it began.")]
    candidate: Annotated[str, Field(description="strategy.candidate when it began.")]
    phase: Annotated[
        Phase,
        Field(
            description="Progressing: a step is under way. Paused: it waits for a user. Promoted: the "
            "candidate has all requests. RolledBack: the stable has them all again."
        ),
    ]
    weight: Annotated[int, Field(ge=0, le=100, description="The candidate's percent that is asked for now.")]
    mirror: Annotated[
        int, Field(ge=0, le=100, description="Percent of the requests that are copied to it now.")
    ] = 0
    target: Annotated[
        int,
        Field(
            ge=0,
            le=100,
            description="The candidate's percent by the last step whose weight was set. weight is less "
            "while its ready pods do not allow so much.",
        ),
    ] = 0
    replicas: Annotated[
        int,
        Field(ge=0, description="Ready pods of the stable that the whole of the requests was served by."),
    ] = 0
    steps: Annotated[str, Field(max_length=64, description="Fingerprint of the steps that it follows.")] = ""
    reason: Annotated[
        str,
        Field(max_length=64, description="Why it is where it is: the reason of the condition Progressing."),
    ] = ""
    message: Annotated[str, Field(max_length=1024, description="The same in words.")] = ""
    started: Annotated[
        str, Field(json_schema_extra={"format": "date-time"}, description="When the release began.")
    ] = ""
    ended: Annotated[
        str | None,
        Field(
            json_schema_extra={"format": "date-time"},
            description="When it was promoted or taken back; absent until then.",
        ),
    ] = None
    settled: Annotated[
        str | None,
        Field(
            json_schema_extra={"format": "date-time"},
            description="Since when all ready routers have had weight and mirror; absent until they have.",
        ),
    ] = None
    judged: Annotated[
        str | None,
        Field(
            json_schema_extra={"format": "date-time"},
            description="When the metrics were last judged, or the routers took up a step's weight since: "
            "the interval under way began then.",
        ),
    ] = None
    idle_since: Annotated[
        str | None,
        Field(
            json_schema_extra={"format": "date-time"},
            description="Since when the backend that lost all requests has answered none; its capacity is "
            "kept until that was 30 s ago.",
        ),
    ] = None
    candidate_uid: Annotated[
        str,
        Field(max_length=64, description="The candidate's uid: another one begins from the first step."),
    ] = ""
    handled: Annotated[
        str | None,
        Field(
            max_length=128,
            description="The last value of the annotation penstock.dev/release that was carried out or "
            "refused.",
        ),
    ] = None
    pending: Annotated[
        str | None,
        Field(max_length=128, description="A value of it that waits, such as for the stable backend."),
    ] = None
    held: Annotated[
        bool,
        Field(
            description="Whether a user or a verdict has paused it, not its steps: it stays so if these "
            "are edited."
        ),
    ] = False
