"""A page to look at, in the browser of this machine: what runs, what waits, what changes, and why.

It is served on loopback until Ctrl-C, with the rights of the kubeconfig's user and no others; nothing is
installed in the cluster. Who has the URL that it prints can do through it what that user may do.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import webbrowser

from penstock_cli.cluster import Cluster, CommandError
from penstock_cli.text import Screen

HOST = "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument(
        "--port", type=int, default=0, help="of loopback, to serve it on (default: a free one)"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the URL")


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Serve the page until Ctrl-C."""
    asyncio.run(_serve(cluster, arguments, screen))
    return 0


async def _serve(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> None:
    # Here, since no other command needs a server.
    from penstock_cli.ui.scrapes import Scrapes
    from penstock_cli.ui.server import Server
    from penstock_cli.ui.store import Store, Watches

    try:
        from penstock_wire.http.server.server import H1Front
        from penstock_wire.page.door import Door
    except ImportError as error:
        raise CommandError(f"ui needs Linux or macOS, on Windows the one of WSL: {error}") from error

    everywhere, store, front = arguments.all_namespaces, Store(), H1Front()
    watches, scrapes = Watches(cluster, store, everywhere=everywhere), Scrapes(cluster, store)
    door = Door(Server(cluster, store, scrapes, everywhere=everywhere).answer)
    try:
        listener = await front.listen(HOST, arguments.port, door.handle)
    except (OSError, OverflowError) as error:
        raise CommandError(f"cannot listen on port {arguments.port} of {HOST}: {error}") from error
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    url = "http://{}:{}/".format(*listener.address)
    watches.start()
    scrapes.start()
    print(f"Penstock: {url}{door.fragment()}\nCtrl-C ends it.", file=screen.out, flush=True)  # whole
    if not arguments.no_browser:
        await asyncio.to_thread(webbrowser.open, url + door.code())
    await ended.wait()
    watches.close()
    scrapes.close()
    store.close()
    await front.close(0.0)
