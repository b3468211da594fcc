"""`penstock export module:Class`, or `module:application`: resources, one backend and one endpoint a class.

Nothing is constructed, so that neither the models nor the machine that loads them need be there.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.arguments import json_object
from penstock.composition import NO_INIT_KWARGS, Application, Node, bound
from penstock.errors import CompositionError, LoadError
from penstock.target import locate
from penstock_wire.extras import needs

API_VERSION = "penstock.dev/v1alpha1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser.

    Args:
        parser: the parser.
    """
    parser.add_argument("application", help="what to export: module:Class, :function or :application")
    parser.add_argument(
        "--image",
        required=True,
        type=_image,
        help="the image that holds the code and the SDK; {name} is a node's",
    )
    parser.add_argument(
        "--init-kwargs", type=json_object, default={}, help="keyword arguments of the class, JSON"
    )
    parser.add_argument("--namespace", help="of the resources (default: none, that of kubectl apply)")


def _image(text: str) -> str:
    if not text or text != "".join(text.split()):
        raise argparse.ArgumentTypeError(f"expected the name of an image, found {text!r}")
    return text


def run(options: argparse.Namespace) -> int:
    """Print the resources.

    Args:
        options: the parsed arguments of `add_arguments`.

    Returns:
        The exit code.
    """
    with needs("penstock export", "run"):
        import yaml
    try:
        application = find_application(options.application, options.init_kwargs)
        documents = resources(application, image=options.image, namespace=options.namespace)
    except (CompositionError, LoadError) as error:
        print(f"penstock export: cannot export {options.application}: {error}", file=sys.stderr)
        return 1
    yaml.dump_all(documents, sys.stdout, sort_keys=False, allow_unicode=True, explicit_start=True)
    return 0


def find_application(name: str, init_kwargs: Mapping[str, Any] | None = None) -> Application:
    """Import an application, or make one of a class or a function, also from the working directory.

    Args:
        name: `module:name`.
        init_kwargs: keyword arguments of the class.

    Raises:
        LoadError: it does not exist, or does not take these arguments.
        Exception: whatever the module raises.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    located = locate(name)
    if isinstance(located, Application):
        if init_kwargs:
            raise LoadError(NO_INIT_KWARGS)
        return located
    if not isinstance(located, type) and not inspect.isroutine(located):
        what = type(located).__name__
        raise LoadError(f"expected {name} to be a class, a function or what .bind returned, found a {what}")
    try:
        return bound(located, init_kwargs or {})
    except TypeError as error:
        raise LoadError(str(error)) from error


def resources(application: Application, *, image: str, namespace: str | None = None) -> list[dict[str, Any]]:
    """Make the resources of an application, each node's after those of the nodes that it calls.

    Args:
        application: the application.
        image: image of all nodes; `{name}` in it is replaced by a node's name.
        namespace: the resources' namespace; None for none.

    Raises:
        CompositionError: a node cannot be constructed in another process, or its spec's `model` is not an
            object.
    """
    documents = []
    for node in application.nodes:
        documents += [
            _resource("ModelBackend", node.name, namespace, _backend(node, image)),
            _resource("ModelEndpoint", node.name, namespace, {"backend": node.name}),
        ]
    return documents


def _backend(node: Node, image: str) -> dict[str, Any]:
    python: dict[str, Any] = {"image": image.replace("{name}", node.name), "target": node.target}
    if kwargs := node.init_kwargs:
        python["initKwargs"] = kwargs
    spec = dict(node.spec)
    model = spec.pop("model", {})
    if not isinstance(model, Mapping) or not isinstance(model.get("python", {}), Mapping):
        raise CompositionError(f"{node.name}: expected the spec's model and model.python to be objects")
    return {"model": {**model, "python": {**python, **model.get("python", {})}}, **spec}


def _resource(kind: str, name: str, namespace: str | None, spec: dict[str, Any]) -> dict[str, Any]:
    where = {} if namespace is None else {"namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, **where}, "spec": spec}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; None: the process's own.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="penstock export", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
