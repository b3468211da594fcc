"""`penstock export module:Class`, or `module:application`: resources, one backend and one endpoint a class.

Nothing is constructed, so that neither the models nor the machine that loads them need be there. With
`--code` the code goes along, in an immutable ConfigMap named by its digest; `penstock deploy` applies that.
"""

from __future__ import annotations

import argparse
import base64
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.arguments import json_object
from penstock.code_archive import CodeArchive, local_files, locked, pack, wheels_of
from penstock.composition import NO_INIT_KWARGS, Application, Node, bound
from penstock.errors import CompositionError, LoadError
from penstock.target import locate
from penstock.user_code import USER_CODE, described, trace_of
from penstock_wire import contract
from penstock_wire.extras import needs

API_VERSION = "penstock.dev/v1alpha1"
CODE_LABEL = "penstock.dev/code"
"""On a ConfigMap of code: the name of the application's front endpoint."""
ARTIFACT_FOLDER = "/mnt/models"
"""Where an artifact is mounted, unless its `mountPath` says otherwise."""
_DIGITS = 12
"""So many digits of the digest are in the ConfigMap's name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser.

    Args:
        parser: the parser.
    """
    add_common_arguments(parser)
    parser.add_argument(
        "--code",
        action="store_true",
        help="print the code, too, as a ConfigMap; --image then defaults to the release's own",
    )


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export` and `deploy` to a parser."""
    parser.add_argument("application", help="what to serve: module:Class, :function or :application")
    parser.add_argument(
        "--image",
        type=_image,
        help="the image that holds the SDK, and the code unless that goes along; {name} is a node's",
    )
    parser.add_argument("--name", help="of the endpoint that clients call (default: from the class's name)")
    parser.add_argument(
        "--requirements",
        type=Path,
        help="what the code needs beside the image, as pip reads it; locked by uv unless it has hashes",
    )
    parser.add_argument(
        "--wheelhouse",
        help="wheels for clusters without an index: a folder here, whose wheels go with the code, or the URI "
        "of an artifact, such as s3://bucket/wheels",
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
        if not options.code and options.image is None:
            raise LoadError("expected --image with the code in it, or --code, found neither")
        if not options.code and options.requirements is not None:
            raise LoadError("expected --requirements with --code alone: an image has its requirements in it")
        documents = documents_of(options, code=options.code)
    except (CompositionError, LoadError, OSError) as error:
        print(f"penstock export: cannot export {options.application}: {error}", file=sys.stderr)
        return 1
    yaml.dump_all(documents, sys.stdout, sort_keys=False, allow_unicode=True, explicit_start=True)
    return 0


def documents_of(options: argparse.Namespace, *, code: bool) -> list[dict[str, Any]]:
    """Make the resources that a command line asks for; with `code`, the code's ConfigMap first.

    Raises:
        LoadError: the application or its code cannot be used.
        CompositionError: as for `resources`.
        OSError: a file of the code, or the requirements, cannot be read.
    """
    application = find_application(options.application, options.init_kwargs)
    if options.name is not None:
        application = application.named(options.name)
    wheelhouse = options.wheelhouse
    if wheelhouse is not None and options.requirements is None:
        raise LoadError("expected --wheelhouse with --requirements, found it alone")
    is_uri = wheelhouse is not None and "://" in wheelhouse
    archive = None
    if code:
        files, lines = local_files(Path.cwd()), None
        if options.requirements is not None:
            folder = None if wheelhouse is None or is_uri else Path(wheelhouse)
            lines = locked(options.requirements, folder)
            files |= wheels_of(folder, lines) if folder is not None and files else {}
        archive = pack(files, requirements=lines)
    return resources(
        application,
        image=options.image,
        namespace=options.namespace,
        code=archive,
        wheelhouse=wheelhouse if is_uri else None,
    )


def find_application(name: str, init_kwargs: Mapping[str, Any] | None = None) -> Application:
    """Import an application, or make one of a class or a function, also from the working directory.

    Args:
        name: `module:name`.
        init_kwargs: keyword arguments of the class.

    Raises:
        LoadError: it does not exist, cannot be imported (standard error has the traceback), or does not take
            these arguments.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with USER_CODE:
            located = locate(name)
    except LoadError:
        raise
    except Exception as error:
        sys.stderr.write(trace_of(error))
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; what the code imports has to be installed here, too"
        module = name.partition(":")[0]
        raise LoadError(f"module {module} cannot be imported: {described(error)}{hint}") from error
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


def resources(
    application: Application,
    *,
    image: str | None,
    namespace: str | None = None,
    code: CodeArchive | None = None,
    wheelhouse: str | None = None,
) -> list[dict[str, Any]]:
    """Make the resources of an application, each node's after those of the nodes that it calls.

    Args:
        application: the application.
        image: image of all nodes; `{name}` in it is replaced by a node's name. None: the release's, for code.
        namespace: the resources' namespace; None for none.
        code: code that is not in the image; its ConfigMap is the first of the resources.
        wheelhouse: URI of an artifact with the wheels that the code requires; None = pip asks an index.

    Raises:
        CompositionError: a node cannot be constructed in another process, its spec's `model` is not an
            object, or it has an artifact of its own beside the wheelhouse.
    """
    documents = []
    python: dict[str, Any] = {}
    if code is not None:
        front = application.nodes[-1].name
        name = f"{front}-code-{code.digest.removeprefix('sha256:')[:_DIGITS]}"
        python["code"] = {"configMapRef": {"name": name}, "digest": code.digest}
        documents.append(_configmap(name, namespace, front, code))
    for node in application.nodes:
        if image is not None:
            python["image"] = image.replace("{name}", node.name)
        documents += [
            _resource("ModelBackend", node.name, namespace, _backend(node, python, wheelhouse)),
            _resource("ModelEndpoint", node.name, namespace, {"backend": node.name}),
        ]
    return documents


def _configmap(name: str, namespace: str | None, front: str, code: CodeArchive) -> dict[str, Any]:
    where = {} if namespace is None else {"namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **where, "labels": {CODE_LABEL: front}},
        "immutable": True,
        "binaryData": {contract.CODE_KEY: base64.b64encode(code.data).decode()},
    }


def _backend(node: Node, given: Mapping[str, Any], wheelhouse: str | None) -> dict[str, Any]:
    python: dict[str, Any] = {**given, "target": node.target}
    if kwargs := node.init_kwargs:
        python["initKwargs"] = kwargs
    spec = dict(node.spec)
    model = spec.pop("model", {})
    if not isinstance(model, Mapping) or not isinstance(model.get("python", {}), Mapping):
        raise CompositionError(f"{node.name}: expected the spec's model and model.python to be objects")
    python |= model.get("python", {})
    if wheelhouse is not None:
        artifact = {"uri": wheelhouse, **model.get("artifact", {})}
        if artifact["uri"] != wheelhouse:
            raise CompositionError(
                f"{node.name}: expected no other artifact beside --wheelhouse, found {artifact['uri']}: "
                "bring the wheels in that, and set PIP_NO_INDEX and PIP_FIND_LINKS"
            )
        model = {**model, "artifact": artifact}
        variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": artifact.get("mountPath", ARTIFACT_FOLDER)}
        set_here = [{"name": name, "value": value} for name, value in variables.items()]
        python["env"] = [*set_here, *python.get("env", ())]
    return {"model": {**model, "python": python}, **spec}


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
