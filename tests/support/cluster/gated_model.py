"""A model that answers while its gate is open, so that a test decides when, and not the machine's pace."""

from __future__ import annotations

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Namespace

_GATED = """
import http.server, json, threading
gate, lock, held = threading.Event(), threading.Lock(), 0
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/open": gate.set()
        if self.path == "/shut": gate.clear()
        self.answer(str(held).encode())
    def do_POST(self):
        global held
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with lock: held += 1
        gate.wait()
        with lock: held -= 1
        self.answer(json.dumps({"predictions": PREDICTIONS}).encode())
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
"""


def gated(predictions: str = 'asked["instances"]') -> str:
    """The model's program; its gate is shut at first.

    Args:
        predictions: of its answers, as Python; the request is `asked`.
    """
    return _GATED.replace("PREDICTIONS", predictions)


class Gate:
    """The gates of some backends' models, of the pods that there are now."""

    def __init__(self, namespace: Namespace, *backends: str) -> None:
        self.namespace = namespace
        # NB: by address: a pod that is being deleted is asked, too.
        self.addresses = [pod["status"]["podIP"] for name in backends for pod in namespace.pods(name)]

    def open(self) -> None:
        """Let the models answer."""
        self._ask("/open")

    def shut(self) -> None:
        """Have them answer no more."""
        self._ask("/shut")

    def held(self) -> int:
        """Batches that the models hold now."""
        return sum(map(int, self._ask("/held")))

    def open_with(self, items: int) -> None:
        """Open once so many items are with the sidecars: queued, or held by the models."""
        wait_for(f"{items} items in the sidecars", lambda: sum(map(self._items, self.addresses)) == items)
        self.open()

    def _items(self, address: str) -> int:
        status, _, text = self.namespace.curl(f"http://{address}:8013/metrics")
        assert status == 200, text
        names = ("penstock_sidecar_queued_items", "penstock_sidecar_ongoing_items")
        lines = [line for line in text.splitlines() if line.startswith(names)]
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))

    def _ask(self, path: str) -> list[str]:
        return [self.namespace.curl(f"http://{address}:8080{path}")[2] for address in self.addresses]
