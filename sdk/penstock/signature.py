"""Reads a method's signature once, and binds items to it."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from penstock.decorators import gathers_in_process, mark_of
from penstock.errors import ArgumentsError, LoadError
from penstock.in_process.costs import Cost
from penstock.request import Request
from penstock.steps import yields
from penstock.validation import Validator, hints_of, is_list_of, validators_of

Parameter = inspect.Parameter
POSITIONAL = "*"
"""The member of an item that has a call's arguments without names, if there are several."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The way in which a method takes its items.

    Args:
        name: the method's name, for messages.
        batched: it takes a list of items and returns as many answers.
        columns: it takes one list for each parameter (then `batched` too).
        whole: an item is itself the only argument; else it is an object with the arguments as its members, or
            ignored if there are no parameters.
        asynchronous: it is a coroutine function, or an asynchronous generator.
        generator: it yields pieces of its answers.
        parameters: the parameters that arguments are bound to.
        shared: a batched method's keyword-only parameters: they get the members beside `instances`, once for
            all items. (An unmarked method may get them for any parameter but its first.)
        open: it takes `**kwargs`: members that are not parameters.
        request: the parameter that gets the `Request`, or a batch's list of them; None for none.
        validators: validate and convert the arguments of annotated parameters, by name.
        arrays: rows of tensors are given to it as arrays.
        cost: what one of its items costs, see `decorators.batched`.
    """

    name: str
    batched: bool
    columns: bool
    whole: bool
    asynchronous: bool
    generator: bool
    parameters: tuple[Parameter, ...]
    shared: tuple[Parameter, ...]
    open: bool
    request: str | None = None
    validators: Mapping[str, Validator] = dataclasses.field(default_factory=dict)
    arrays: bool = False
    cost: Cost | None = None

    @property
    def raw(self) -> bool:
        """Whether it takes the request alone, and so requests of any form."""
        return self.request is not None and not (self.parameters or self.open)

    def bind_shared(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that all items share, by name; absent ones keep the method's defaults.

        An unmarked method with several parameters can get all but its first so.

        Args:
            members: the request's members beside `instances`.

        Raises:
            ArgumentsError: names are missing or unknown, or a value cannot be read.
        """
        names = [parameter.name for parameter in self.shared]
        if not self.batched and not self.whole:
            names = [parameter.name for parameter in self.parameters[1:]]
        unknown = [] if self.open else [name for name in members if name not in names]
        if unknown:
            but = f" but {_names(names)}" if names else ""
            raise ArgumentsError(
                f'$: expected no member beside "instances"{but}, found {_names(unknown)}', unknown=unknown
            )
        missing = [
            parameter.name
            for parameter in self.shared
            if parameter.default is Parameter.empty and parameter.name not in members
        ]
        if missing:
            raise ArgumentsError(
                f'$: expected beside "instances" a member {_names(missing)}, found none', missing=missing
            )
        for name, value in members.items():
            if isinstance(value, ArgumentsError):
                raise ArgumentsError(f"$.{name}: {value}", paths=[f"$.{name}"])
        return self._validated(dict(members), "$.{}") if self.batched else dict(members)

    def bind(self, item: Any, beside: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Return the arguments of one item by name, with defaults filled in.

        Args:
            item: the item's value: an object, or the first argument if it needs no others, or if there are
                arguments beside it; any value if `whole`.
            beside: an unmarked method's arguments for all items (`bind_shared`).

        Raises:
            ArgumentsError: it is not an object, names are missing or unknown, or a value has another type.
        """
        unnamed = item.get(POSITIONAL) if isinstance(item, dict) else None
        if isinstance(unnamed, list) and not (self.whole and len(unnamed) < 2):
            item = self._named(unnamed, item)
        elif self.whole:
            name = self.parameters[0].name
            try:
                return self._validated({name: item}, "$")
            except ArgumentsError:
                if not isinstance(item, dict) or list(item) != [name]:
                    raise
                return self._validated(dict(item), "$.{}")  # a call with its argument by name
        elif not self.parameters and not self.open:
            return {}
        elif beside or (not isinstance(item, dict) and self._stands_alone()):
            item = self._named([item], beside)
        elif not isinstance(item, dict):
            wanted = ", ".join(parameter.name for parameter in self.parameters)
            raise ArgumentsError(f"expected an object with the arguments {wanted}, found {_kind(item)}")
        arguments: dict[str, Any] = {}
        missing: list[str] = []
        for parameter in self.parameters:
            if parameter.name in item:
                arguments[parameter.name] = item[parameter.name]
            elif parameter.default is not Parameter.empty:
                arguments[parameter.name] = parameter.default
            else:
                missing.append(parameter.name)
        unknown = [name for name in item if name not in arguments and name not in missing]
        if self.open and not missing:
            arguments.update((name, item[name]) for name in unknown)
            unknown = []
        if missing or unknown:
            words = [
                f"{kind} {_names(names)}"
                for kind, names in (("missing", missing), ("unknown", unknown))
                if names
            ]
            raise ArgumentsError("; ".join(words), missing=missing, unknown=unknown)
        return self._validated(arguments, "$.{}", given=item)

    def _named(self, unnamed: list[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name.

        Raises:
            ArgumentsError: there are more without a name than parameters, or two for one parameter.
        """
        names = [each.name for each in self.parameters if each.kind is not Parameter.KEYWORD_ONLY]
        if len(unnamed) > len(names):
            raise ArgumentsError(
                f"expected at most {len(names)} arguments without a name, found {len(unnamed)}"
            )
        arguments = dict(zip(names, unnamed, strict=False))
        twice = [name for name in arguments if name in named]
        if twice:
            raise ArgumentsError(f"expected one value for {_names(twice)}, found two", unknown=twice)
        return arguments | {name: value for name, value in named.items() if name != POSITIONAL}

    def _stands_alone(self) -> bool:
        """Whether the first argument is enough for a call."""
        first, *more = self.parameters or (None,)
        return (
            first is not None
            and first.kind is not Parameter.KEYWORD_ONLY
            and all(each.default is not Parameter.empty for each in more)
        )

    def _validated(
        self, arguments: dict[str, Any], path: str, given: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the arguments converted by their annotations; defaults, which are not in `given`, stay."""
        for name, validate in self.validators.items():
            if name in arguments and (given is None or name in given):
                arguments[name] = validate(arguments[name], path.format(name))
        return arguments

    def call(self, method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Call a method of this shape with arguments by name; in order, since a wrapper may take `*args`."""
        ordered = [each for each in self.parameters if each.kind is not Parameter.KEYWORD_ONLY]
        if self.request is not None:  # which may come before the others
            ordered = [each for each in ordered if each.kind is Parameter.POSITIONAL_ONLY]
        names = [each.name for each in ordered]
        named = {name: value for name, value in arguments.items() if name not in names}
        return method(*[arguments[name] for name in names], **named)


def read(function: Callable[..., Any], name: str, *, skip_self: bool = False) -> Shape:
    """Read a method's shape.

    Args:
        function: the method or function.
        name: its name in messages.
        skip_self: the first parameter is `self`.

    Raises:
        LoadError: the shape cannot be served.
    """
    if gathers_in_process(function):
        raise LoadError(
            f"{name}: expected @penstock.batched, for which the sidecar gathers requests, "
            "found @penstock.batch, which gathers calls within one process"
        )
    mark = mark_of(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise LoadError(f"{name}: expected a method with a signature, found {function!r}") from error
    if skip_self:
        if not parameters or parameters[0].kind not in (
            Parameter.POSITIONAL_ONLY,
            Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise LoadError(
                f"{name}: expected a method whose first parameter is self, found {_text(parameters)}"
            )
        parameters = parameters[1:]
    named = tuple(p for p in parameters if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD))
    hints = hints_of(function, [parameter.name for parameter in named], name)
    request = _request(hints, name, batched=mark is not None)
    named = tuple(parameter for parameter in named if parameter.name != request)
    shared: tuple[Parameter, ...] = ()
    if mark is not None:
        shared = tuple(parameter for parameter in named if parameter.kind is Parameter.KEYWORD_ONLY)
        named = named[: len(named) - len(shared)]
    columns = mark is not None and mark.columns
    open_ = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        raise LoadError(f"{name}: expected named parameters, found {_text(parameters)}")
    if mark is not None and open_:
        raise LoadError(f"{name}: expected a batched method without **kwargs, found {_text(parameters)}")
    if mark is not None and not columns and len(named) != 1 and (named or request is None):
        raise LoadError(
            f"{name}: expected one parameter, the list of items, found {_text(parameters)}; "
            "with @penstock.batched(columns=True) each parameter gets a list of its own"
        )
    if mark is not None and not named and request is None:
        raise LoadError(f"{name}: expected a parameter for the items, found {_text(parameters)}")
    names = [parameter.name for parameter in (*named, *shared)]
    listed = [parameter.name for parameter in named] if mark is not None else []
    forms = (function, getattr(function, "__call__", None))  # noqa: B004 - an object with a method
    return Shape(
        name=name,
        batched=mark is not None,
        columns=columns,
        arrays=mark is not None and mark.arrays,
        cost=None if mark is None else mark.cost,
        whole=not columns and len(named) == 1 and not open_,
        asynchronous=any(map(inspect.iscoroutinefunction, forms))
        or any(map(inspect.isasyncgenfunction, forms)),
        generator=yields(function),
        parameters=named,
        shared=shared,
        open=open_,
        request=request,
        validators=validators_of(
            function, {each: hints[each] for each in names if each in hints}, listed=listed, where=name
        ),
    )


def _request(hints: Mapping[str, Any], name: str, *, batched: bool) -> str | None:
    """The parameter that gets the request; None for none.

    Raises:
        LoadError: there are several, or the type is that of the other kind of method, or of Starlette.
    """
    for each, hint in hints.items():
        for kind in (hint, *typing.get_args(hint)):
            if str(getattr(kind, "__module__", "")).startswith("starlette.") and kind.__name__ == "Request":
                raise LoadError(f"{name}: expected penstock.Request for {each}, found {kind}")
    found = [each for each, hint in hints.items() if hint is Request or is_list_of(hint, Request)]
    if len(found) > 1:
        raise LoadError(f"{name}: expected one parameter for the request, found {_names(found)}")
    if found and is_list_of(hints[found[0]], Request) is not batched:
        expected = "list[Request], one for each item," if batched else "Request, of one item, or @batched"
        raise LoadError(f"{name}: expected {expected} for {found[0]}, found {hints[found[0]]}")
    return found[0] if found else None


def _text(parameters: list[Parameter]) -> str:
    return "(" + ", ".join(str(parameter) for parameter in parameters) + ")"


def _names(names: list[str]) -> str:
    shown = ", ".join(name[:64] for name in names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return kinds.get(type(value), type(value).__name__)
