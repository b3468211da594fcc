"""The command line: `python -m devcluster COMMAND`."""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from devcluster import images, nodes, programs, relay
from devcluster.cluster import Cluster
from devcluster.console import say
from devcluster.errors import DevclusterError
from devcluster.paths import DEFAULT_NAME, REPOSITORY, cache_dir, state_root

_OTHER_PROGRAMS = ("kubectl", "helm", "run")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="python -m devcluster",
        description="A real Kubernetes on this machine, in namespaces of its own.",
    )
    top.add_argument("--name", default=DEFAULT_NAME, help="which cluster (default: %(default)s)")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, act: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(act=act)
        # Also after the command; SUPPRESS keeps a value that was given before it.
        sub.add_argument("--name", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return sub

    up = add("up", _up, "start the cluster (the first time, build its programs) and wait until it is ready")
    up.add_argument("--nodes", type=int, default=1, help="how many it shall have at least (default: 1)")
    more = add("node", _node, "add a node, take one away, or lose one as by a power cut")
    more.add_argument("verb", choices=("add", "remove", "lose"))
    more.add_argument("node", metavar="node1|node2|…")
    add("down", _down, "end the cluster and remove every trace of it but the caches")
    add("status", _status, "show the cluster's state; exit code 0 if it is ready")
    only = add("build", _build, "build the cluster's programs and nothing else")
    extra = sorted(component.name for component in programs.COMPONENTS.values() if component.extra)
    only.add_argument("extra", nargs="*", help=f"build these instead: {', '.join(extra)}")
    load = add("load", _load, "give images to the cluster: names that `images` built, or archives")
    load.add_argument("what", nargs="*", help="default: the four images of this repository")
    logs = add("logs", _logs, "print the log of a component, or list the components")
    logs.add_argument("component", nargs="?")
    logs.add_argument("-f", "--follow", action="store_true", help="go on printing")
    logs.add_argument("--tail", type=int, metavar="N", help="only the last N lines")
    forward = add("forward", _forward, "make a port on 127.0.0.1 that leads to a Service or a pod")
    forward.add_argument("what", metavar="svc/NAME|pod/NAME")
    forward.add_argument("-n", "--namespace", default="default")
    forward.add_argument("--port", help="the Service's port, by number or name (default: its first)")
    forward.add_argument("--local", type=int, default=0, help="the port on 127.0.0.1 (default: a free one)")
    build = add("images", _images, "build images: the four of this repository, or another Dockerfile")
    build.add_argument(
        "--target",
        action="append",
        help="a stage, or a format's image such as sklearn-model; may be given again (default: all four)",
    )
    build.add_argument("--file", type=Path, help="another Dockerfile (default: this repository's)")
    build.add_argument("--context", type=Path, help="the folder that COPY reads (default: the Dockerfile's)")
    build.add_argument("--tag", help="the image's name (default: localhost/penstock/TARGET:dev)")
    build.add_argument("--build-arg", action="append", default=[], metavar="KEY=VALUE")
    build.add_argument("--load", action="store_true", help="and give them to the cluster")
    add("kubectl", _kubectl, "run kubectl on the cluster")
    add("helm", _helm, "run helm on the cluster")
    add("run", _run, "run any command in the cluster's network, with its DNS: run -- CMD …")
    return top


def _cluster(arguments: argparse.Namespace) -> Cluster:
    return Cluster(arguments.name)


def _up(arguments: argparse.Namespace) -> int:
    begin = time.monotonic()
    cluster = _cluster(arguments)
    if not 1 <= arguments.nodes <= nodes.MOST + 1:
        raise DevclusterError(f"--nodes: expected 1 to {nodes.MOST + 1}, found {arguments.nodes}")
    cluster.up(node_count=arguments.nodes)
    there = cluster.nodes()
    name = "" if cluster.name == DEFAULT_NAME else f" --name {cluster.name}"
    version = programs.COMPONENTS["kubernetes"].version
    print(
        f"""
cluster {cluster.name} is ready ({time.monotonic() - begin:.1f} s): Kubernetes {version}, {", ".join(there)}
  on this machine     KUBECONFIG={cluster.host_kubeconfig}
  in its network      {cluster.kubeconfig}
  logs                python -m devcluster{name} logs [COMPONENT]    in {cluster.state.logs}
  caches              {cache_dir()}
next
  python -m devcluster{name} kubectl get pods -A
  python -m devcluster{name} images --load                 # build this repository's images and load them
  python -m devcluster{name} helm list -A
  python -m devcluster{name} run -- curl http://NAME.NAMESPACE.svc.cluster.local
  python -m devcluster{name} forward svc/NAME -n NAMESPACE  # a port on 127.0.0.1
  python -m devcluster{name} down"""
    )
    return 0


def _node(arguments: argparse.Namespace) -> int:
    cluster = _cluster(arguments)
    act = {"add": cluster.add_node, "remove": cluster.remove_node, "lose": cluster.lose_node}
    act[arguments.verb](arguments.node)
    return 0


def _down(arguments: argparse.Namespace) -> int:
    begin = time.monotonic()
    _cluster(arguments).down()
    say(f"cluster {arguments.name} is gone: {time.monotonic() - begin:.1f} s; caches stay in {cache_dir()}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    cluster = _cluster(arguments)
    status = cluster.status()
    print(f"cluster {cluster.name}: {status.phase}" + (f": {status.error}" if status.error else ""))
    for name, component in status.components.items():
        if status.phase == "dead":
            break
        state = "running" if component["running"] else "ended, starts again"
        restarts = f", restarted {component['restarts']} times" if component["restarts"] else ""
        print(f"  {name:20} {state}{restarts}")
    missing = ", ".join(component.name for component in programs.missing())
    others = sorted(
        path.name for path in state_root().glob("*") if path.is_dir() and path.name != cluster.name
    )
    print(f"  {'programs':20} {'not built: ' + missing if missing else 'built'}, in {cache_dir()}/programs")
    print(f"  {'images':20} {', '.join(sorted(images.built())) or 'none built'}")
    if others:
        print(f"  {'other clusters':20} {', '.join(others)}")
    if status.phase != "ready":
        return 1
    ready = {name: cluster.api().node_ready(name) for name in cluster.nodes()}
    for name, well in ready.items():
        print(f"  {name:20} {'Ready' if well else 'not Ready'}")
    print(f"  {'kubeconfig':20} {cluster.host_kubeconfig}")
    running = all(component["running"] for component in status.components.values())
    return 0 if all(ready.values()) and running else 1


def _build(arguments: argparse.Namespace) -> int:
    unknown = sorted(set(arguments.extra) - set(programs.COMPONENTS))
    if unknown:
        raise DevclusterError(
            f"unknown program {', '.join(unknown)}; expected one of {', '.join(programs.COMPONENTS)}"
        )
    if arguments.extra:
        programs.ensure(*arguments.extra)
    else:
        programs.ensure_all()
    for component in programs.COMPONENTS.values():
        if component.name in arguments.extra or not (arguments.extra or component.extra):
            print(f"{component.name} {component.version}: {component.folder}")
    return 0


def _load(arguments: argparse.Namespace) -> int:
    _cluster(arguments).load(*(arguments.what or map(images.image_name, images.TARGETS)))
    return 0


def _images(arguments: argparse.Namespace) -> int:
    build_args = {}
    for pair in arguments.build_arg:
        key, equals, value = pair.partition("=")
        if not equals:
            raise DevclusterError(f"--build-arg: expected KEY=VALUE, found {pair!r}")
        build_args[key] = value
    if arguments.file and not arguments.tag:
        raise DevclusterError("--file needs --tag: what shall the image be called?")
    if arguments.tag and len(arguments.target or ()) > 1:
        raise DevclusterError("--tag names one image, so give one --target")
    dockerfile = arguments.file or REPOSITORY / "Dockerfile"
    targets = arguments.target or ([None] if arguments.file else images.TARGETS)
    if arguments.tag and not arguments.file and not arguments.target:
        raise DevclusterError("--tag names one image, so give a --target")
    for target in targets if not arguments.file else (arguments.target or [None]):
        tag = arguments.tag or images.image_name(target)
        stage, given = (target, {}) if arguments.file else images.stage(target)
        new = images.build(
            dockerfile=dockerfile,
            tag=tag,
            target=stage,
            context=arguments.context,
            build_args=given | build_args,
        )
        print(f"{tag}: {'built' if new else 'unchanged'}")
        if arguments.load:
            _cluster(arguments).load(tag)
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    folder = _cluster(arguments).state.root
    logs = {path.stem: path for path in folder.glob("logs/*.log")}
    logs |= {f"{path.parts[-3]}/{path.stem}": path for path in folder.glob("nodes/*/logs/*.log")}
    names = sorted(logs)
    if not arguments.component:
        print("\n".join(names) or f"no logs in {folder}/logs")
        return 0
    if arguments.component not in names:
        raise DevclusterError(f"{arguments.component!r} has no log; these have: {', '.join(names) or 'none'}")
    file = logs[arguments.component]
    if arguments.follow or arguments.tail is not None:
        lines = str(arguments.tail) if arguments.tail is not None else "+1"
        _become(["tail", *(["-F"] if arguments.follow else []), "-n", lines, str(file)])
    sys.stdout.write(file.read_text(errors="replace"))
    return 0


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide a command line into our arguments and those of the program that it runs."""
    before = list(argv)
    index = 0
    while index < len(before) and before[index].startswith("--name"):
        index += 1 if "=" in before[index] else 2
    if before[index : index + 1] and before[index] in _OTHER_PROGRAMS:
        return before[: index + 1], before[index + 1 :]
    return before, []


def _rest(arguments: argparse.Namespace) -> list[str]:
    rest: list[str] = arguments.rest
    return rest[1:] if rest[:1] == ["--"] else rest


def _become(command: Sequence[str]) -> int:
    """Replace this process: signals, streams and the exit code are the command's own."""
    sys.stdout.flush()
    os.execvp(command[0], list(command))  # noqa: S606 - that is what the command is for


def _kubectl(arguments: argparse.Namespace) -> int:
    return _become(_cluster(arguments).kubectl_command(*_rest(arguments)))


def _helm(arguments: argparse.Namespace) -> int:
    return _become(_cluster(arguments).helm_command(*_rest(arguments)))


def _run(arguments: argparse.Namespace) -> int:
    command = _rest(arguments)
    if not command:
        raise DevclusterError("run what? python -m devcluster run -- CMD …")
    return _become([*_cluster(arguments).exec_prefix, *command])


def _forward(arguments: argparse.Namespace) -> int:
    cluster = _cluster(arguments)
    record = cluster.require_alive()
    host, port = cluster.target(arguments.what, arguments.namespace, arguments.port)
    try:
        listener = relay.listen(arguments.local)
    except OSError as error:
        raise DevclusterError(f"127.0.0.1:{arguments.local} cannot be used: {error.strerror}") from error
    print(f"{arguments.what} {host}:{port} is at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)

    async def serve() -> None:
        ended = relay.watch_process(record.pid)
        relay.enter_network(record.pid)
        await relay.relay(listener, host, port, until=ended)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The command line without the program; None for this process's.

    Returns:
        The exit code: 1 for a failed command, 2 for a machine that cannot run a cluster.
    """
    ours, rest = _split(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(ours, argparse.Namespace(rest=rest))
    try:
        code: int = arguments.act(arguments)
        sys.stdout.flush()
    except DevclusterError as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return error.exit_code
    except subprocess.CalledProcessError as error:
        print(f"devcluster: {' '.join(map(str, error.cmd))} exited {error.returncode}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("devcluster: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has read enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
