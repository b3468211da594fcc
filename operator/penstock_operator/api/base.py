"""The base of every resource: the pydantic base class, metadata, and parsing with readable errors."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from penstock_operator.errors import words_of

GROUP = "penstock.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class ResourceError(ValueError):
    """A stored object does not parse as its kind.

    The message names the object, and for each fault its path, what was expected and what was found.
    """


class Part(BaseModel):
    """A piece of a resource: camelCase in the API, frozen; unknown fields are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=False,
    )

    def model_post_init(self, _context: Any, /) -> None:
        """Share the set of the fields that were given, which takes two thirds of a part's memory."""
        object.__setattr__(self, "__pydantic_fields_set__", _fields(frozenset(self.model_fields_set)))

    def document(self) -> dict[str, Any]:
        """Return the part as the API spells it: camelCase, without members that are None."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


@functools.lru_cache(maxsize=4096)
def _fields(names: frozenset[str]) -> set[str]:
    return set(names)


class OwnMeta(Part):
    """The part of a resource's metadata that Penstock reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Resource(Part):
    """A custom resource of Penstock. Subclasses narrow `spec` and `status` and name their kind."""

    plural: ClassVar[str]
    """The kind's plural name, as in URLs."""
    rules: ClassVar[tuple[dict[str, str], ...]] = ()
    """CEL rules on the whole object, in addition to those on every object's name."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: OwnMeta

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The object's namespace."""
        return self.metadata.namespace

    @property
    def age_key(self) -> tuple[str, str]:
        """A sort key that puts the oldest first, to decide conflicts; resources of one second by name."""
        return (self.metadata.creation_timestamp, self.name)

    @property
    def deleting(self) -> bool:
        """Whether the object is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> Self:
        """Read an object as the apiserver stores it.

        Raises:
            ResourceError: It does not parse; the message has each path, what was expected and found.
        """
        document = stored
        while True:
            try:
                return cls.model_validate(document)
            except pydantic.ValidationError as error:
                faults = error.errors(include_url=False)
                if any(fault["loc"][:1] != ("status",) for fault in faults):
                    raise ResourceError(_explain(cls.__name__, stored, error)) from None
            # A status that an older or newer operator wrote never blocks the spec. Its unreadable parts are
            # computed again; the rest can be the only record, such as of the progress of a release.
            document = _without(document, faults)


def _without(document: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a document without the faulty and incomplete parts of its status."""
    made = {**document, "status": copy.deepcopy(document["status"])}
    places = {fault["loc"][: -1 if fault["type"] == "missing" else None] for fault in faults}
    # NB: from the end of a list, and a part before its whole: the other places stay valid.
    for *place, last in sorted(places, key=lambda loc: [(str(type(at)), at) for at in loc], reverse=True):
        try:
            whole: Any = made
            for at in place:
                whole = whole[at]
            del whole[last]
        except (LookupError, TypeError):  # pydantic names a place that is not in the document
            return {key: value for key, value in document.items() if key != "status"}
    return made


def _explain(kind: str, stored: Mapping[str, Any], error: pydantic.ValidationError) -> str:
    metadata = stored.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    faults = [
        f"{'.'.join(str(step) for step in fault['loc']) or '(object)'}: {words_of(fault)}, "
        + ("found nothing" if fault["type"] == "missing" else f"found {_short(fault['input'])}")
        for fault in error.errors(include_url=False, include_context=False)
    ]
    return f"{kind} {metadata.get('namespace', '?')}/{metadata.get('name', '?')}: {'; '.join(faults)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
