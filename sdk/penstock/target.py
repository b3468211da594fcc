"""Resolves `module:Class` or `module:function` to the methods that the server calls."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from penstock.decorators import gathers_in_process, mark_of
from penstock.errors import LoadError
from penstock.handles.init_kwargs import with_handles
from penstock.multiplexed import Multiplexed, closing
from penstock.signature import Shape, read
from penstock.steps import yields
from penstock.user_code import USER_CODE
from penstock_wire.process import log

DEFAULTS = ("__call__", "predict")
RECONFIGURE = "reconfigure"
"""The method that takes a userConfig."""
HOOKS = ("load", "warmup", "close")
"""Methods without arguments: the first two are called in order after construction, the last at the end."""
_LIST = re.compile(r"(typing\.)?[lL]ist\b")


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
        tensors: `inputs` and `outputs` as a model's file describes them; None if only the shape is known.
    """

    shape: Shape
    method: Callable[..., Any]
    reconfigure: Callable[[Any], Any] | None = None
    methods: Mapping[str, Served] = dataclasses.field(default_factory=dict)
    default: bool = True
    hooks: Mapping[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)
    tensors: Mapping[str, Any] | None = None


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
    if module_name.endswith(".py") or "/" in module_name:
        path = PurePath(module_name.removesuffix(".py"))
        dotted = ".".join(part for part in path.parts if part.isidentifier())
        raise LoadError(f"expected a module such as {dotted}, found the file {module_name}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise LoadError(f"expected a module {module_name} on the Python path, found none") from error
        raise
    except ImportError as error:
        if not str(error).startswith("attempted relative import"):
            raise
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        name = frame.f_globals["__name__"]
        raise LoadError(
            f"expected {name} to be in a package, since it imports relatively, found {error}: "
            f"begin in a folder above, and name package.{name}"
        ) from error
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            file = getattr(module, "__file__", None) or " ".join(getattr(module, "__path__", ["built in"]))
            raise LoadError(f"expected {attribute} in module {module_name}, found no {part} ({file})")
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
    _note_items(shape)
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
    default, names, _ = _choose(name, located)
    return _shape(name, located, default or names[0])


def served_names(name: str, kind: type[Any]) -> list[str]:
    """The methods of a class that a request can name.

    Args:
        name: the target's name in messages.
        kind: the class.

    Raises:
        LoadError: as for `find_default`.
    """
    _, names, beside = _choose(name, kind)
    return [*names, *_readable(name, kind, beside)]


def _class(name: str, kind: type[Any], init_kwargs: dict[str, Any]) -> Target:
    default, names, beside = _choose(name, kind)
    shapes = {each: _shape(name, kind, each) for each in names}
    shapes |= _readable(name, kind, beside)
    for shape in shapes.values():
        _note_items(shape)
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
    hooks = [hook for hook in HOOKS if hook not in shapes and _has(name, kind, hook, "no arguments")]
    first = default or names[0]

    def build() -> Served:
        made = kind(**init_kwargs)
        described = made.__tensors__ if hasattr(kind, "__tensors__") else None
        methods = {
            each: Served(shape=shape, method=getattr(made, each), tensors=described)
            for each, shape in shapes.items()
        }
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
            tensors=described,
        )

    return Target(name=name, shape=shapes[first], build=build)


def _readable(name: str, kind: type[Any], methods: Iterable[str]) -> dict[str, Shape]:
    """The shapes of methods that are served if they can be; the others are logged."""
    shapes: dict[str, Shape] = {}
    for method in methods:
        try:
            shapes[method] = _shape(name, kind, method)
        except LoadError as error:
            log("a method is not served", level="warning", error=str(error))
    return shapes


def _note_items(shape: Shape) -> None:
    """Log that a method gets something else than its only parameter says: a request, or a list."""
    (first, *more) = shape.parameters or (None,)
    if first is None or more:
        return
    if first.annotation is first.empty and first.name in ("request", "requests"):
        log(
            "a parameter without a type gets the item, not the request",
            level="warning",
            method=shape.name,
            expected=f"{first.name}: {'list[penstock.Request]' if shape.batched else 'penstock.Request'}",
            found=str(first),
        )
    if shape.batched:
        return
    hint = first.annotation
    if _LIST.match(hint if isinstance(hint, str) else getattr(hint, "__name__", "")):
        log(
            "a method without a mark gets one item a call",
            level="warning",
            method=shape.name,
            expected="@penstock.batched, if the list is a batch; Sequence, if each item is a list",
            found=str(first),
        )


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
            method = getattr(kind, attribute)
            return inspect.isroutine(method) and not isinstance(method, Multiplexed)
    except Exception:  # a descriptor that raises without an object
        return False


def _choose(name: str, kind: type[Any]) -> tuple[str | None, list[str], list[str]]:
    """The default method, the methods that must be served, and those that are served if they can be.

    A request can name all of them: the default one, the marked ones, and the unmarked public ones of the
    class and its bases in the same package. The default is `__call__`, else `predict`, else the only marked
    method, else the only public one; None if there are several. A framework's base class may have methods for
    its own use: an inherited one that is not marked does not count where a class below has marked methods,
    nor does one that the base class names in `__hooks__`, for subclasses to override.
    """
    public = [
        attribute
        for attribute in dir(kind)
        if not attribute.startswith("_")
        and attribute not in (RECONFIGURE, *HOOKS, *getattr(kind, "__hooks__", ()))
        and _is_method(kind, attribute)
    ]
    marked = [attribute for attribute in public if mark_of(getattr(kind, attribute)) is not None]
    nearest = min((_depth(kind, each) for each in marked), default=len(kind.__mro__))
    package = kind.__module__.partition(".")[0]

    def is_own(attribute: str) -> bool:
        """Whether an unmarked method is the author's, not a framework's: those would be open to clients."""
        depth = _depth(kind, attribute)
        return (
            depth <= nearest
            and kind.__mro__[depth].__module__.partition(".")[0] == package
            and not gathers_in_process(getattr(kind, attribute))
        )

    plain = [each for each in public if each not in marked and is_own(each)]
    for candidate in DEFAULTS:
        # NB: every class object has its metaclass's __call__; only one that the class defines counts.
        depth = _depth(kind, candidate)
        if depth < len(kind.__mro__) and (depth <= nearest or mark_of(getattr(kind, candidate)) is not None):
            served = [candidate, *(each for each in marked if each != candidate)]
            return candidate, served, [each for each in plain if each not in served]
    if marked:
        return marked[0] if len(marked) == 1 else None, marked, plain
    if len(public) == 1:
        return public[0], public, []
    if plain:
        return plain[0] if len(plain) == 1 else None, plain, []
    raise LoadError(
        f"{name}: expected a method __call__ or predict, or one method marked @penstock.batched, "
        f"found {', '.join(public) or 'no method'}"
    )
