"""Resolves `module:Class` or `module:function` to the methods that the server calls."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from penstock.decorators import mark_of
from penstock.errors import LoadError
from penstock.handles.init_kwargs import with_handles
from penstock.multiplexed import closing
from penstock.signature import Shape, read
from penstock.steps import yields
from penstock.user_code import USER_CODE

DEFAULTS = ("__call__", "predict")
RECONFIGURE = "reconfigure"
"""The method that takes a userConfig."""
HOOKS = ("load", "warmup", "close")
"""Methods without arguments: the first two are called in order after construction, the last at the end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A method that is ready to be called.

    Args:
        shape: how it takes its items.
        method: the bound method or the function.
        reconfigure: takes a userConfig; None if the target does not have the method.
        methods: all methods that a request can name, including this one.
        default: it answers the requests that do not name a method.
        hooks: the target's methods among `HOOKS`, by name.
    """

    shape: Shape
    method: Callable[..., Any]
    reconfigure: Callable[[Any], Any] | None = None
    methods: Mapping[str, Served] = dataclasses.field(default_factory=dict)
    default: bool = True
    hooks: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target named on the command line, checked but not yet constructed.

    Args:
        name: its name on the command line.
        shape: shape of its default method, or of the first method if there is no default.
        build: constructs it and returns its methods; can take as long as loading a model.
    """

    name: str
    shape: Shape
    build: Callable[[], Served]


def find(name: str, init_kwargs: Mapping[str, Any] | None = None) -> Target:
    """Import a target and check its shape.

    Args:
        name: `module:Class` or `module:function`.
        init_kwargs: keyword arguments of the class.

    Raises:
        LoadError: it does not exist, is neither class nor function, has no method to serve or one with a
            wrong shape, or does not take these keyword arguments.
        Exception: whatever the module raises when it is imported.
    """
    return target_of(name, locate(name), init_kwargs)


def locate(name: str) -> Any:
    """Import the object that a target names.

    Args:
        name: `module:attribute`.

    Raises:
        LoadError: it does not exist.
        Exception: whatever the module raises when it is imported.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise LoadError(f"expected a target such as module:Class, found {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise LoadError(f"expected a module {module_name} on the Python path, found none") from error
        raise
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise LoadError(f"expected {attribute} in module {module_name}, found no {part}")
        value = getattr(value, part)
    return value


def target_of(name: str, located: Any, init_kwargs: Mapping[str, Any] | None = None) -> Target:
    """Check the shape of a target.

    Args:
        name: its name in messages.
        located: a class or a function.
        init_kwargs: keyword arguments of the class; `{"handle": name}` is a handle of that endpoint.

    Raises:
        LoadError: as for `find`.
    """
    if isinstance(located, type):
        return _class(name, located, with_handles(init_kwargs or {}))
    if not inspect.isroutine(located):
        raise LoadError(f"{name}: expected a class or a function, found {type(located).__name__}")
    if init_kwargs:
        raise LoadError(f"{name}: expected no init kwargs for a function, found {', '.join(init_kwargs)}")
    shape = read(located, name)
    served = Served(shape=shape, method=located)
    methods = {getattr(located, "__name__", name): served}
    return Target(name=name, shape=shape, build=lambda: dataclasses.replace(served, methods=methods))


def find_default(name: str, located: Any) -> Shape:
    """The shape of the default method; if several are marked, the shape of the first.

    Args:
        name: the target's name in messages.
        located: a class or a function.

    Raises:
        LoadError: it has no method to serve, or one with a wrong shape.
    """
    if not isinstance(located, type):
        return read(located, name)
    default, names = _choose(name, located)
    return _shape(name, located, default or names[0])


def _class(name: str, kind: type[Any], init_kwargs: dict[str, Any]) -> Target:
    default, names = _choose(name, kind)
    shapes = {each: _shape(name, kind, each) for each in names}
    try:
        inspect.signature(kind).bind(**init_kwargs)
    except TypeError as error:
        wanted = inspect.signature(kind)
        raise LoadError(
            f"{name}: expected init kwargs for {wanted}, found {', '.join(init_kwargs) or 'none'}: {error}"
        ) from error
    except ValueError:
        pass  # a class without a readable signature: its constructor checks

    takes_config = _has(name, kind, RECONFIGURE, "the config alone", None)
    hooks = [hook for hook in HOOKS if hook not in names and _has(name, kind, hook, "no arguments")]
    first = default or names[0]

    def build() -> Served:
        made = kind(**init_kwargs)
        methods = {each: Served(shape=shape, method=getattr(made, each)) for each, shape in shapes.items()}
        bound = {hook: getattr(made, hook) for hook in hooks}
        if (close := closing(kind, made, bound.get("close"))) is not None:
            bound["close"] = close
        return Served(
            shape=shapes[first],
            method=methods[first].method,
            reconfigure=getattr(made, RECONFIGURE) if takes_config else None,
            methods=methods,
            default=default is not None,
            hooks=bound,
        )

    return Target(name=name, shape=shapes[first], build=build)


def _shape(name: str, kind: type[Any], method: str) -> Shape:
    static = inspect.getattr_static(kind, method)
    bound = isinstance(static, staticmethod | classmethod) or not inspect.isfunction(static)
    return read(getattr(kind, method), f"{name}.{method}", skip_self=not bound)


def _has(name: str, kind: type[Any], attribute: str, takes: str, *arguments: object) -> bool:
    """Whether the class has a method that takes these arguments; raises LoadError if it takes others."""
    method = inspect.getattr_static(kind, attribute, None)
    if method is None:
        return False
    bound = isinstance(method, staticmethod | classmethod)
    function = getattr(kind, attribute)
    if not callable(function):
        raise LoadError(f"{name}.{attribute}: expected a method, found {type(function).__name__}")
    if yields(function):
        raise LoadError(f"{name}.{attribute}: expected a method that runs when called, found a generator")
    try:
        inspect.signature(function).bind(*(() if bound else (None,)), *arguments)
    except TypeError as error:
        raise LoadError(
            f"{name}.{attribute}: expected a method that takes {takes}, found {inspect.signature(function)}"
        ) from error
    except ValueError:
        pass  # no readable signature: the call checks
    return True


def _depth(kind: type[Any], attribute: str) -> int:
    """The number of classes below the one that defines an attribute; that of all classes if none does."""
    bases = kind.__mro__
    return next((index for index, base in enumerate(bases) if attribute in base.__dict__), len(bases))


def _is_method(kind: type[Any], attribute: str) -> bool:
    try:
        with USER_CODE:
            return inspect.isroutine(getattr(kind, attribute))
    except Exception:  # a descriptor that raises without an object
        return False


def _choose(name: str, kind: type[Any]) -> tuple[str | None, list[str]]:
    """The default method, and all methods that a request can name: the default one and the marked ones.

    The default is `__call__`, else `predict`, else the only marked method, else the only public one; None if
    several are marked. A framework's base class may have one of these for its own use: an inherited one that
    is not marked does not count where a class below has marked methods.
    """
    public = [
        attribute
        for attribute in dir(kind)
        if not attribute.startswith("_")
        and attribute not in (RECONFIGURE, *HOOKS)
        and _is_method(kind, attribute)
    ]
    marked = [attribute for attribute in public if mark_of(getattr(kind, attribute)) is not None]
    nearest = min((_depth(kind, each) for each in marked), default=len(kind.__mro__))
    for candidate in DEFAULTS:
        # NB: every class object has its metaclass's __call__; only one that the class defines counts.
        depth = _depth(kind, candidate)
        if depth < len(kind.__mro__) and (depth <= nearest or mark_of(getattr(kind, candidate)) is not None):
            return candidate, [candidate, *(each for each in marked if each != candidate)]
    if len(marked) > 1:
        return None, marked
    for candidates in (marked, public):
        if len(candidates) == 1:
            return candidates[0], candidates
    raise LoadError(
        f"{name}: expected a method __call__ or predict, or one method marked @penstock.batched, "
        f"found {', '.join(public) or 'no method'}"
    )
