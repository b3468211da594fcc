"""The router's table, out of the results: `python -m bench.router_table` prints it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.figures import median
from bench.report import number

LABELS = {
    "router": "**Penstock's router**",
    "nginx": "nginx",
    "haproxy": "HAProxy",
    "relay": "a relay that reads nothing (uvloop)",
    "sidecar": "Penstock's sidecar alone",
    "router_sidecar": "router and sidecar",
    "origin": "the origin asked directly",
}
MANY = (32, 128)


def table(document: Mapping[str, Any]) -> str:
    """The Markdown: speeds, then what a sidecar behind it and many endpoints cost.

    Args:
        document: the results of `bench.router`.
    """
    return "\n".join([*_speeds(document), "", *_more(document)])


def _speeds(document: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "| 32 / 128 connections, one core | requests a second | CPU a request, µs | ÷ nginx's "
        "| added at one connection, ms: p50 / p99 | at half load: p50 / p99 |"
    )
    yield "| -- | -- | -- | -- | -- | -- |"
    for name, label in LABELS.items():

        def both(key: str, digits: int, name: str = name) -> str:
            values = [median(document, key.format(name=name, many=many)) for many in MANY]
            return " / ".join(number(value, digits) for value in values)

        def tail(part: str, case: str, name: str = name) -> str:
            values = [median(document, f"{part}/{name}/{case}/{word}") for word in ("p50", "p99")]
            return " / ".join(number(value) for value in values)

        if name in document["failures"]:
            yield f"| {label} | {document['failures'][name]} | | | | |"
        elif median(document, f"throughput/{name}/128/rate") is not None:
            cpu = both("throughput/{name}/{many}/cpu", 1)
            if name == "router_sidecar":
                cpu = " / ".join(f"{number(_cpu(document, name, many), 1)}" for many in MANY)
            cells = [
                f"{label} {document['versions'].get(name, '')}".rstrip(),
                both("throughput/{name}/{many}/rate", 0),
                cpu,
                " / ".join(_times(document, name, many) for many in MANY),
                tail("added", "1"),
                tail("half", "-"),
            ]
            if name == "origin":
                cells[2:] = [cpu, "", "", ""]
            yield "| " + " | ".join(cells) + " |"


def _cpu(document: Mapping[str, Any], name: str, connections: int) -> float | None:
    """CPU a request of a server and what stands behind it, µs."""
    figure = median(document, f"throughput/{name}/{connections}/cpu")
    behind = median(document, f"throughput/{name}/{connections}/cpu_behind")
    return None if figure is None else figure + (behind or 0.0)


def _times(document: Mapping[str, Any], name: str, connections: int) -> str:
    ours, theirs = _cpu(document, name, connections), _cpu(document, "nginx", connections)
    return f"{ours / theirs:.2f}" if ours and theirs else "-"


def _more(document: Mapping[str, Any]) -> Iterator[str]:
    yield "| the router | |"
    yield "| -- | -- |"
    shares = []
    for connections in MANY:
        alone = _cpu(document, "sidecar", connections)
        each = [
            median(document, f"throughput/router_sidecar/{connections}/{word}")
            for word in ("cpu", "cpu_behind")
        ]
        worst = max((value for value in each if value is not None), default=0.0)
        shares.append(f"{alone / worst:.2f}" if alone and worst else "-")
        parts = " + ".join(number(value, 1) for value in each)
        yield f"| CPU a request of router + sidecar, at {connections} connections | {parts} µs |"
    yield (
        "| router and sidecar, each on a core of its own, of the sidecar alone: by the CPU of the slower of "
        f"the two, at 32 / 128 connections | {' / '.join(shares)} |"
    )
    keys = sorted(
        int(key.split("/")[2])
        for key in document["figures"]
        if key.startswith("memory/router/") and key.endswith("/loaded")
    )
    sizes = [number(median(document, f"memory/router/{count}/loaded"), 0) for count in keys]
    yield f"| memory after load with {', '.join(map(str, keys))} endpoints | {' / '.join(sizes)} MB |"


def main() -> None:
    """Print the table of the results, or of the file that is named."""
    path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "results" / "router.json"
    print(table(json.loads(Path(path).read_text())))


if __name__ == "__main__":
    main()
