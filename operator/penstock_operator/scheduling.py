"""Checks the members of core/v1's PodSpec for the placement of routers, before any of them is rendered.

Otherwise the apiserver would refuse every router's Deployment, long after the mistake was made. The checks
are those of the API's types and the apiserver's validation of these members (Kubernetes 1.33 to 1.37), except
the values of `matchLabelKeys` and namespaces.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock_wire.control import handwritten
from penstock_wire.errors import DocumentError

_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS = rf"(?=[-a-z0-9.]{{1,253}}(/|\Z)){_DNS_LABEL}(\.{_DNS_LABEL})*"
_WORD = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

_NAME = rf"^({_DNS}/)?{_WORD}\Z"
_NAME_OR_NONE = rf"^(({_DNS}/)?{_WORD})?\Z"
_VALUE = rf"^({_WORD})?\Z"
_OBJECT_OR_NONE = rf"^({_DNS})?\Z"
_CALLED = {
    _NAME: "a label's name such as disk or example.com/disk",
    _NAME_OR_NONE: "a taint's key such as gpu or example.com/gpu",
    _VALUE: "a label's value (at most 63 letters, digits, - _ .)",
    _OBJECT_OR_NONE: "an object's name",
}
"""The meaning of each pattern, in words."""

LabelName = Annotated[str, Meta(pattern=_NAME)]
LabelValue = Annotated[str, Meta(pattern=_VALUE)]
_Names = tuple[str, ...] | None
_Labels = dict[LabelName, LabelValue] | None
_Weight = Annotated[int, Meta(ge=1, le=100)]
_Count = Annotated[int, Meta(ge=1, lt=2**31)]


class _Part(msgspec.Struct, rename="camel", kw_only=True):
    """A type of core/v1 or meta/v1; null counts as left out, as for the apiserver."""


class Toleration(_Part):
    """A taint that is tolerated."""

    key: Annotated[str, Meta(pattern=_NAME_OR_NONE)] | None = None
    operator: Literal["Exists", "Equal", "Lt", "Gt", ""] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute", ""] | None = None
    toleration_seconds: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None

    def __post_init__(self) -> None:
        """See what the members say together."""
        if self.operator == "Exists" and self.value:
            raise ValueError(f"expected no value with operator Exists, found {self.value!r}")
        if self.operator != "Exists" and not self.key:
            raise ValueError("expected a key, or operator Exists, found neither")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            actual = repr(self.effect) if self.effect else "none"
            raise ValueError(f"expected effect NoExecute with tolerationSeconds, found {actual}")


class _Requirement(_Part):
    """A requirement of labels."""

    key: LabelName
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[LabelValue, ...] | None = None

    def __post_init__(self) -> None:
        """Check that there are values exactly if the operator compares with any."""
        if bool(self.values) != (self.operator in ("In", "NotIn")):
            wanted = "no values" if self.values else "values"
            raise ValueError(f"expected {wanted} with operator {self.operator}")


class _NodeRequirement(_Part):
    """A requirement of a node's labels."""

    key: LabelName
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: _Names = None

    def __post_init__(self) -> None:
        """Check that there are as many values as the operator compares with."""
        count = len(self.values or ())
        if self.operator in ("Gt", "Lt"):
            if count != 1:
                raise ValueError(f"expected one value with operator {self.operator}, found {count}")
        elif bool(count) != (self.operator in ("In", "NotIn")):
            wanted = "no values" if count else "values"
            raise ValueError(f"expected {wanted} with operator {self.operator}")


class _FieldRequirement(_Part):
    """A requirement of a node's name, the only field that can be matched."""

    key: Literal["metadata.name"]
    operator: Literal["In", "NotIn"]
    values: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1)]


class _NodeTerm(_Part):
    match_expressions: tuple[_NodeRequirement, ...] | None = None
    match_fields: tuple[_FieldRequirement, ...] | None = None


class _NodeTerms(_Part):
    node_selector_terms: Annotated[tuple[_NodeTerm, ...], Meta(min_length=1)]


class _PreferredNodes(_Part):
    weight: _Weight
    preference: _NodeTerm


class _NodeAffinity(_Part):
    required_during_scheduling_ignored_during_execution: _NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_PreferredNodes, ...] | None = None


class _Selector(_Part):
    match_labels: _Labels = None
    match_expressions: tuple[_Requirement, ...] | None = None


class _PodTerm(_Part):
    topology_key: LabelName
    label_selector: _Selector | None = None
    namespaces: _Names = None
    namespace_selector: _Selector | None = None
    match_label_keys: _Names = None
    mismatch_label_keys: _Names = None


class _PreferredPods(_Part):
    weight: _Weight
    pod_affinity_term: _PodTerm


class _PodAffinity(_Part):
    required_during_scheduling_ignored_during_execution: tuple[_PodTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_PreferredPods, ...] | None = None


class Affinity(_Part):
    """The affinity of a pod to nodes and pods."""

    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class TopologySpreadConstraint(_Part):
    """How pods spread over the cluster."""

    max_skew: _Count
    topology_key: LabelName
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    label_selector: _Selector | None = None
    min_domains: _Count | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    match_label_keys: _Names = None

    def __post_init__(self) -> None:
        """See what the members say together."""
        if self.min_domains is not None and self.when_unsatisfiable != "DoNotSchedule":
            raise ValueError("expected whenUnsatisfiable: DoNotSchedule with minDomains")


class Scheduling(_Part):
    """All members of a PodSpec that can be set for routers."""

    priority_class_name: Annotated[str, Meta(pattern=_OBJECT_OR_NONE)] | None = None
    node_selector: _Labels = None
    tolerations: tuple[Toleration, ...] | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None

    def __post_init__(self) -> None:
        """Check that each kind of spread is given once."""
        kinds = [
            (constraint.topology_key, constraint.when_unsatisfiable)
            for constraint in self.topology_spread_constraints or ()
        ]
        for kind in kinds:
            if kinds.count(kind) > 1:
                raise ValueError(
                    f"topologySpreadConstraints: expected {' and '.join(kind)} once, found twice"
                )


def read(text: str) -> dict[str, Any]:
    """Read members of a PodSpec, by name, as the apiserver takes them.

    Args:
        text: a JSON object of them. Whole numbers can be written as `1e+06`, as helm does.

    Returns:
        The members that are not empty.

    Raises:
        ValueError: the text is not valid; the message says where, what was expected and what was found.
    """
    try:
        parsed = json.loads(text, parse_float=_number, object_pairs_hook=_members)
    except RecursionError:
        raise ValueError("expected JSON of fewer levels") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"expected a JSON object of {', '.join(Scheduling.__struct_encode_fields__)}")
    try:
        msgspec.convert(handwritten.read(parsed, Scheduling, what="PodSpec"), Scheduling)
    except (DocumentError, msgspec.ValidationError) as error:
        message = str(error)
        for pattern, words in _CALLED.items():
            message = message.replace(f"Expected `str` matching regex {pattern!r}", f"expected {words}")
        raise ValueError(message) from None
    return {name: value for name, value in parsed.items() if value}


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"expected each member once, found {doubled!r} twice in one object")
    return members


def _number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number
