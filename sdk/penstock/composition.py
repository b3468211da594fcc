"""Composes several classes into one application: `.bind` takes constructor arguments, also other classes.

::

    @penstock.backend
    class Pipeline:
        def __init__(self, adder, multiplier): ...

    app = Pipeline.bind(Adder.bind(1), Multiplier.bind(factor=2))

Nothing is constructed here. Each class is a node of the graph: a backend and an endpoint with the same name.
For a bound node, the constructor gets a handle of its endpoint (`penstock.Handle`).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from penstock.decorators import mark_of
from penstock.encoding import NO_JSON, encode
from penstock.errors import AnswerError, CompositionError, LoadError
from penstock.handles.arguments import Options
from penstock.handles.handle import Handle
from penstock.in_process.settings import MAX_CONCURRENT, count
from penstock.near_names import did_you_mean
from penstock.target import find_default, served_names
from penstock_wire.durations import parse_ms
from penstock_wire.process import log

T = TypeVar("T", bound=Callable[..., Any])

MAX_NAME = 50
"""The most characters of a node's name: the names that the operator derives from it must fit into 63."""
MAX_DEPTH = 32
"""The most levels of lists and objects in an argument."""
ALONE: Mapping[str, Any] = {"maxBatchSize": 1, "maxConcurrentBatches": 64}
"""Default batching of a node with a one-item method: each request comes alone, with its own id, deadline and
client, and many are under way at once."""
SPEC = (
    *("model", "batching", "batchPolicyRef", "maxOngoingRequests", "userConfig", "warmup", "replicas"),
    *("autoscaling", "drain", "rollout", "disruptionBudget", "podTemplate", "sidecar", "suspend"),
)
"""The fields of a ModelBackend's spec."""
BATCHING = (
    *("maxBatchSize", "maxBatchBytes", "batchWaitTimeout", "maxConcurrentBatches", "latencyObjective"),
    *("defaultTimeout", "maxQueuedItems", "batchKeyHeaders", "onBatchError", "priority", "fairness"),
    *("cost", "maxBatchCost", "reuse"),
)
"""The fields of its `batching`."""
COUNTS = {"maxBatchSize": 4096, "maxConcurrentBatches": MAX_CONCURRENT}
"""Those that are numbers from 1, with the largest."""

NO_INIT_KWARGS = "expected no init kwargs for an application, whose classes are bound to theirs"

_BIND = "bind"
_NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """A placeholder in a node's arguments for the handle of an endpoint.

    Args:
        endpoint: its name: another node's, or that of an existing endpoint.
        namespace: the endpoint's namespace; None = the node's own.
    """

    endpoint: str
    namespace: str | None = None

    def document(self) -> dict[str, str]:
        """The form in `initKwargs`."""
        where = {} if self.namespace is None else {"namespace": self.namespace}
        return {"handle": self.endpoint, **where}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One backend and one endpoint of an application.

    Args:
        name: name of both.
        kind: the class, or the function.
        arguments: arguments of the class by name, with a `Reference` for each bound node or handle.
        spec: further fields of the ModelBackend's spec.
    """

    name: str
    kind: Callable[..., Any]
    arguments: Mapping[str, Any]
    spec: Mapping[str, Any]

    @property
    def target(self) -> str:
        """The class as `module:qualname`, for import by another process.

        Raises:
            CompositionError: another process cannot import it: it is defined in a function or in `__main__`.
        """
        name = f"{self.kind.__module__}:{self.kind.__qualname__}"
        kind: Any = sys.modules.get(self.kind.__module__)
        for part in self.kind.__qualname__.split("."):
            kind = getattr(kind, part, None)
        if kind is not self.kind or self.kind.__module__ == "__main__":
            raise CompositionError(
                f"{self.name}: expected a class that other processes can import, at the top of a module "
                f"other than __main__, found {name}"
            )
        return name

    @property
    def init_kwargs(self) -> dict[str, Any]:
        """The arguments in the form of `initKwargs`: JSON, with `{"handle": name}` for handles.

        Raises:
            CompositionError: an argument has no JSON form.
        """
        arguments = self.resolved(Reference.document)
        for name, value in arguments.items():
            try:
                encode(value)
            except AnswerError as error:
                raise CompositionError(
                    f"{self.name}: expected an argument {name} with a JSON form, since the object is "
                    f"constructed in another process: {error}; let the constructor make it"
                ) from error
        return arguments

    @property
    def handles(self) -> tuple[Reference, ...]:
        """The endpoints of the handles among its arguments, in order."""
        references: list[Reference] = []

        def note(reference: Reference) -> Reference:
            references.append(reference)
            return reference

        self.resolved(note)
        return tuple(dict.fromkeys(references))

    def resolved(self, handle: Callable[[Reference], Any]) -> dict[str, Any]:
        """Return the arguments with each reference replaced.

        Args:
            handle: makes the replacement.
        """

        def change(value: Any, path: str) -> Any:
            return handle(value) if isinstance(value, Reference) else value

        return {name: _walk(value, name, change) for name, value in self.arguments.items()}


class Application:
    """A class with its constructor arguments; returned by `.bind`.

    Its attributes are the arguments below; the nodes made from them are in `nodes`.

    Args:
        kind: the class, or a function.
        arguments: by name; can be or hold other applications, also in lists and objects.
        name: the node's name; None = derived from the class's.
        spec: further fields of the ModelBackend's spec.
    """

    __slots__ = ("arguments", "kind", "name", "spec")

    def __init__(
        self,
        kind: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        name: str | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        self.kind = kind
        # NB: containers are copied, so that an application cannot be put into its own arguments later.
        self.arguments = {
            key: _walk(value, f"{kind.__name__}.{key}", lambda value, _: value)
            for key, value in arguments.items()
        }
        self.name = name
        self.spec = copy.deepcopy(dict(spec or {}))

    def named(self, name: str) -> Application:
        """Return the same application with another name.

        Args:
            name: the node's name: its backend's and its endpoint's.

        Raises:
            CompositionError: the name is not valid.
        """
        _check_name(name, self.kind)
        return Application(self.kind, self.arguments, name=name, spec=self.spec)

    @property
    def root(self) -> Node:
        """The node that clients call.

        Raises:
            CompositionError: as for `nodes`.
        """
        return self.nodes[-1]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, each after those that it calls; an application that was bound twice is one node.

        Raises:
            CompositionError: two have the same name, or handles by name form a circle.
        """
        order: dict[int, Application] = {}
        _collect(self, order)
        names = _names(list(order.values()))

        def reference(value: Any, path: str) -> Any:
            return Reference(names[id(value)]) if isinstance(value, Application) else _of_handle(value)

        nodes = tuple(
            Node(
                name=names[id(each)],
                kind=each.kind,
                arguments={key: _walk(value, key, reference) for key, value in each.arguments.items()},
                spec=_with_cost(each.kind, _sized(each.kind, copy.deepcopy(each.spec))),
            )
            for each in order.values()
        )
        _check_circles(nodes)
        return nodes

    def __repr__(self) -> str:
        return f"<{self.kind.__qualname__}.bind({', '.join(self.arguments)})>"


NO_JSON[Application] = "serve what the function returns, by its name, and not the function"


def _collect(application: Application, order: dict[int, Application]) -> None:
    """Add the applications that an application calls, and then itself."""
    if id(application) in order:
        return

    def child(value: Any, path: str) -> Any:
        if isinstance(value, Application):
            _collect(value, order)
        return value

    for key, value in application.arguments.items():
        _walk(value, key, child)
    order[id(application)] = application


def _sized(kind: Callable[..., Any], spec: dict[str, Any]) -> dict[str, Any]:
    """A spec with `ALONE` for a class whose default method takes single items, unless it says a size."""
    batching = spec.get("batching", {})
    if (
        "maxBatchSize" in batching
        or "batchPolicyRef" in spec
        or find_default(kind.__qualname__, kind).batched
    ):
        return spec
    return {**spec, "batching": {**ALONE, **batching}}


def _with_cost(kind: Callable[..., Any], spec: dict[str, Any]) -> dict[str, Any]:
    """A spec with the cost path of a class's methods, unless it says what items cost."""
    batching = spec.get("batching", {})
    if "cost" not in batching and "batchPolicyRef" not in spec and (path := _cost_path(kind)):
        return {**spec, "batching": {**batching, "cost": {"path": path}}}
    return spec


def _checked_spec(spec: Mapping[str, Any]) -> None:
    """Check the names of a backend's fields, and the values of those that this process uses, too."""
    batching = spec.get("batching", {})
    for what, fields, known in (("spec", spec, SPEC), ("batching", batching, BATCHING)):
        for name in fields:
            if name not in known:
                raise CompositionError(
                    f"penstock.backend: expected {what} with fields among {', '.join(known)}, "
                    f"found {name!r}{did_you_mean(name, known)}"
                )
    for name, most in COUNTS.items():
        if name in batching:
            count(name, batching[name], most, "penstock.backend")
    wait = batching.get("batchWaitTimeout", "0s")
    try:
        parse_ms(wait)
    except (TypeError, ValueError):
        raise ValueError(
            f'penstock.backend: expected batchWaitTimeout to be a time such as "50ms", found {wait!r}'
        ) from None


@overload
def backend(target: T, /) -> T: ...
@overload
def backend(
    *,
    name: str | None = None,
    batching: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Callable[[T], T]: ...
def backend(
    target: T | None = None,
    /,
    *,
    name: str | None = None,
    batching: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> T | Callable[[T], T]:
    """Give a class (or a function) a method `bind`, which takes the arguments of its constructor.

    Nothing else of the class changes.

    Args:
        target: the class, if the decorator is used without brackets.
        name: name of the backend and endpoint; by default the class's in lower case, with a hyphen before
            each further word (`TextEncoder` → `text-encoder`), and with a number from the second node on.
        batching: settings of batching, such as `{"maxBatchSize": 32, "batchWaitTimeout": "10ms"}`: the
            `batching` of the ModelBackend's spec. They hold for all methods of the class.
        spec: further fields of the ModelBackend's spec. In one process (`penstock.run`,
            `penstock.testing.serving`), `userConfig` counts, and of `batching` the two sizes and the wait.

    Raises:
        TypeError: the target is neither class nor function, or has a `bind` already.
        ValueError: a setting of `batching` is out of its range.
        CompositionError: the name is not valid, `batching` is given twice, or a field does not exist.
    """
    if batching is not None:
        if "batching" in (spec or {}):
            raise CompositionError("penstock.backend: expected batching once, found it in spec, too")
        spec = {**(spec or {}), "batching": dict(batching)}
    _checked_spec(spec or {})

    def mark(kind: T) -> T:
        if not isinstance(kind, type) and not inspect.isroutine(kind):
            raise TypeError(f"penstock.backend: expected a class or a function, found {kind!r}")
        taken = inspect.getattr_static(kind, _BIND, None)
        if taken is not None and not isinstance(taken, _Bind):
            raise TypeError(
                f"penstock.backend: expected a class without a bind, found {kind.__qualname__}.bind"
            )
        if name is not None:
            _check_name(name, kind)
        bind = _Bind(name, dict(spec or {}))
        most = (spec or {}).get("batching", {}).get("maxBatchSize", 1)
        if most > 1 and not _takes_batches(kind):
            log(
                "a batch size without a method that takes batches: each item is a call of its own",
                level="warning",
                target=kind.__qualname__,
                expected="a method with @penstock.batched",
                found=f"maxBatchSize {most}",
            )
        # A class gets the descriptor, so that a subclass binds itself; a function has no subclasses.
        attribute: Any = bind if isinstance(kind, type) else functools.partial(bind.call, kind)
        setattr(kind, _BIND, attribute)
        return kind

    return mark if target is None else mark(target)


def _warn_of_alone(kind: Callable[..., Any], spec: Mapping[str, Any]) -> None:
    """Warn of a method for batches beside a default one for single items, which `ALONE` is for."""
    sized = "batchPolicyRef" in spec or "maxBatchSize" in spec.get("batching", {})
    if not sized and _takes_batches(kind) and not find_default(kind.__qualname__, kind).batched:
        log(
            "a method that takes batches gets one item a call",
            level="warning",
            target=kind.__qualname__,
            expected="maxBatchSize in @penstock.backend, or a class of its own for what takes batches",
            found="a default method for one item, for which each request comes alone",
        )


def _cost_path(kind: Callable[..., Any]) -> str | None:
    """The path by which a sidecar reads what an item costs, by `@penstock.batched(cost=…)`.

    Raises:
        CompositionError: it is not of all methods: a sidecar refuses items without it, whatever their method.
    """
    paths = {_path_of(each) for each in _methods(kind)} - {None}
    if not paths or not isinstance(kind, type):
        return next(iter(paths), None)
    named = {each: _path_of(getattr(kind, each)) for each in served_names(kind.__qualname__, kind)}
    if len({*named.values()}) > 1:
        found = ", ".join(f"{path or 'none'} of {each}" for each, path in named.items())
        raise CompositionError(
            f"{kind.__qualname__}: expected one cost path for all methods that clients can name, "
            f"found {found}: mark each with @penstock.batched and that cost, begin a helper's name with an "
            'underscore, or say what holds for all in @penstock.backend(batching={"cost": {"path": …}})'
        )
    return next(iter(named.values()))


def _path_of(method: Any) -> str | None:
    mark = mark_of(method)
    return mark.cost if mark is not None and isinstance(mark.cost, str) else None


def _methods(kind: Callable[..., Any]) -> list[Any]:
    return [inspect.getattr_static(kind, name) for name in dir(kind)] if isinstance(kind, type) else [kind]


def _takes_batches(kind: Callable[..., Any]) -> bool:
    """Whether a function, or a method of a class, is marked."""
    return any(mark_of(method) is not None for method in _methods(kind))


def bound(kind: Callable[..., Any], arguments: Mapping[str, Any]) -> Application:
    """Bind the arguments of a constructor, also of a class without `@backend`.

    Args:
        kind: a class or a function.
        arguments: by name.

    Raises:
        TypeError: as for `bind`.
        LoadError: as for `refuse_builder`.
    """
    refuse_builder(kind)
    bind = inspect.getattr_static(kind, _BIND, None)
    if isinstance(bind, functools.partial):  # of a function
        return bind(**arguments)  # type: ignore[no-any-return]
    return (bind if isinstance(bind, _Bind) else _Bind(None, {})).call(kind, **arguments)


def own_settings(kind: Callable[..., Any], size: int | None = None) -> dict[str, Any]:
    """The settings that a class gives its sidecar, as `penstock export` writes them.

    Where that refuses the cost paths (`_cost_path`), a warning is logged, and none is given.

    Args:
        kind: a class or a function.
        size: `maxBatchSize`, instead of that of `@penstock.backend`; None = that, or `ALONE`.
    """
    bind = inspect.getattr_static(kind, _BIND, None)
    if isinstance(bind, functools.partial):  # of a function
        bind = getattr(bind.func, "__self__", None)
    spec = dict(bind.spec) if isinstance(bind, _Bind) else {}
    if size == 1:  # which `ALONE` has too, and more
        spec = _sized(kind, spec)
    if size is not None:
        spec["batching"] = {**spec.get("batching", {}), "maxBatchSize": size}
    _warn_of_alone(kind, spec)
    spec = _sized(kind, spec)
    try:
        spec = _with_cost(kind, spec)
    except CompositionError as error:
        log("items go by their bytes, not by their cost", level="warning", error=str(error))
    return copy.deepcopy({name: spec[name] for name in ("batching", "userConfig") if name in spec})


def refuse_builder(located: Any) -> None:
    """Refuse a function that binds a class of its module, as Ray Serve's app builders do.

    Raises:
        LoadError: it is one.
    """
    code, scope = getattr(located, "__code__", None), getattr(located, "__globals__", {})
    if code is None or _BIND not in code.co_names:
        return
    for name in code.co_names:
        bind = inspect.getattr_static(scope.get(name), _BIND, None)
        if isinstance(bind, _Bind | functools.partial):
            raise LoadError(
                f"{located.__qualname__}: expected an application, a class or a function that answers, found "
                f"a function that binds {name}: name what it returns (app = {located.__name__}(…))"
            )


class _Bind:
    """The method `bind` of a class."""

    def __init__(self, name: str | None, spec: Mapping[str, Any]) -> None:
        self._name = name
        self.spec = spec

    def __get__(self, instance: object, owner: type[Any]) -> Callable[..., Application]:
        return functools.partial(self.call, owner)

    def call(self, kind: Callable[..., Any], /, *args: Any, **named: Any) -> Application:
        """Bind the arguments of a constructor.

        Raises:
            TypeError: the constructor does not take them, or has parameters that cannot be passed by name.
        """
        if isinstance(kind, type):
            arguments = _by_name(kind, args, named)
        elif args or named:
            raise TypeError(f"{kind.__qualname__}.bind: expected no arguments for a function, found some")
        else:
            arguments = {}
        _warn_of_alone(kind, self.spec)
        return Application(kind, arguments, name=self._name, spec=self.spec)


def _by_name(kind: type[Any], args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(kind)
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        raise TypeError(f"{kind.__qualname__}.bind: expected arguments {signature}: {error}") from None
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(value)
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(
                f"{kind.__qualname__}.bind: expected parameters that have names, since a backend has "
                f"initKwargs, found {parameter}"
            )
        else:
            arguments[name] = value
    return arguments


def _walk(value: Any, path: str, change: Callable[[Any, str], Any], depth: int = 0) -> Any:
    """Copy nested JSON containers, with `change` applied to all other values."""
    if depth > MAX_DEPTH:
        raise CompositionError(
            f"{path[:200]}: expected at most {MAX_DEPTH} levels of lists and objects, found more"
        )
    if type(value) in (list, tuple):
        return type(value)(_walk(each, f"{path}[{i}]", change, depth + 1) for i, each in enumerate(value))
    if type(value) is dict:
        return {key: _walk(each, f"{path}.{key}", change, depth + 1) for key, each in value.items()}
    return change(value, path)


def _of_handle(value: Any) -> Any:
    """Make a reference from a handle; `initKwargs` holds only its endpoint and namespace."""
    if not isinstance(value, Handle):
        return value
    endpoint, namespace, url, options = value.__getstate__()
    if url is not None or options != Options():
        raise CompositionError(
            f"expected a handle with an endpoint and a namespace alone to be bound, found {value!r}: "
            "call .options(…) in the constructor"
        )
    return Reference(endpoint, namespace)


def _names(order: Iterable[Application]) -> dict[int, str]:
    """The names of applications, by identity."""
    names: dict[int, str] = {}
    taken: dict[str, Application] = {}
    given = {each.name for each in order}
    for each in order:
        name = each.name
        if name is None:
            base, count = _kebab(each.kind), 1
            name = base
            while name in taken or name in given:
                count += 1
                name = f"{base}-{count}"
        elif name in taken:
            raise CompositionError(
                f"expected a name for each node, found {name!r} for {taken[name]!r} and {each!r}; "
                "give one of them another: .named(…)"
            )
        taken[name] = each
        names[id(each)] = name
    return names


def _kebab(kind: Callable[..., Any]) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", kind.__name__)
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    _check_name(name, kind)
    return name


def _check_name(name: str, kind: Callable[..., Any]) -> None:
    if not _NAME.fullmatch(name):
        raise CompositionError(
            f"{kind.__qualname__}: expected a name of at most {MAX_NAME} lower-case letters, digits and "
            f"hyphens that begins with a letter, found {name!r}"
        )


def _check_circles(nodes: tuple[Node, ...]) -> None:
    """Refuse nodes that call each other in a circle: each would wait for a slot that the next one holds."""
    calls = {node.name: [each.endpoint for each in node.handles if each.namespace is None] for node in nodes}
    left = dict(calls)
    while free := [name for name, called in left.items() if not any(each in left for each in called)]:
        for name in free:
            del left[name]
    if left:
        path = [next(iter(left))]
        while path[-1] not in path[:-1]:
            path.append(next(each for each in left[path[-1]] if each in left))
        circle = path[path.index(path[-1]) :]
        raise CompositionError(
            f"expected nodes that do not call each other in a circle, found {' → '.join(circle)}"
        )
