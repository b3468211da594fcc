"""The figures of docs/bench.md, generated from the results: `python -m bench.table` prints it.

With `--write` it replaces what is between the two marks of that page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import median
from bench.frame import LOADS
from bench.peers.catalogue import PEERS
from bench.report import number

RESULTS = Path(__file__).parent / "results" / "sidecar.json"
PAGE = Path(__file__).parent.parent / "docs" / "bench.md"
BEGIN = "<!-- written by `python -m bench.table --write` out of bench/results/sidecar.json -->"
END = "<!-- end of what is written -->"


def block(document: Mapping[str, Any]) -> str:
    """The block between the marks, with them."""

    def rate(subject: str, connections: int) -> str:
        figure = median(document, f"throughput/{subject}/{connections}/rate")
        return "-" if figure is None else number(figure, 0)

    def times(subject: str, connections: int) -> str:
        ours = median(document, f"throughput/sidecar/{connections}/rate")
        theirs = median(document, f"throughput/{subject}/{connections}/rate")
        if not (ours and theirs):
            return "-"
        ratio = ours / theirs
        return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.2g}"

    lines = [
        BEGIN,
        "| | 64 connections | 256 connections | sidecar ÷ it: 64 | 256 |",
        "| -- | -- | -- | -- | -- |",
        f"| Penstock's sidecar | {rate('sidecar', 64)}/s | {rate('sidecar', 256)}/s | 1 | 1 |",
        (
            f"| the model's own limit | {rate('model', 64)}/s | {rate('model', 256)}/s | "
            f"{times('model', 64)} | {times('model', 256)} |"
        ),
    ]
    for name, peer in PEERS.items():
        if name not in document["versions"]:
            continue
        if name in document["failures"] and median(document, f"throughput/{name}/64/rate") is None:
            lines.append(f"| {peer.label} {document['versions'][name]} | did not run | | | |")
            continue
        cells = (f"{rate(name, 64)}/s", f"{rate(name, 256)}/s", times(name, 64), times(name, 256))
        lines.append(f"| {peer.label} {document['versions'][name]} | " + " | ".join(cells) + " |")

    def value(key: str, digits: int = 2) -> str:
        return number(median(document, key), digits)

    def cpu(subject: str, part: str = "throughput") -> str:
        values = [value(f"{part}/{subject}/{connections}/cpu", 1) for connections in (64, 256)]
        return f"{' / '.join(values)} µs"

    agent = f"; KServe's agent: {cpu('kserve-agent')}" if "kserve-agent" in document["versions"] else ""
    relay = ""
    if median(document, "latency/relay/one/added_p99") is not None:  # else from before it was measured
        values = [value(f"latency/relay/one/added_{word}") for word in ("p50", "p99")]
        relay = f" (a relay that reads nothing: {' / '.join(values)} ms)"
    apart = []
    if median(document, "apart/sidecar/64/cpu") is not None:  # likewise
        apart.append(f"- the same where no two requests have the same head: {cpu('sidecar', 'apart')}")
    goods = ", ".join(f"{value(f'goodput/sidecar/{percent}/share')} at {percent} %" for percent in LOADS)
    lines += [
        "",
        f"- CPU a request, at 64 / 256 connections: {cpu('sidecar')}{agent}",
        *apart,
        f"- with a model that costs nothing, 256 connections: {value('free/sidecar/256/rate', 0)}/s",
        (
            f"- added at one connection, p50 / p99: {value('latency/sidecar/one/added_p50')} / "
            f"{value('latency/sidecar/one/added_p99')} ms{relay}"
        ),
        (
            f"- added at half load, p99, against a batcher that costs nothing: "
            f"{value('latency/sidecar/half/added_p99')} ms"
        ),
        f"- answers in time, of min(offered, capacity): {goods}",
        f"- refusals within 5 ms at 150 % load: {value('goodput/sidecar/150/refused_within_5ms')}",
        (
            f"- idle CPU, memory after load: {value('idle/sidecar/-/cpu')} % of a core, "
            f"{value('memory/sidecar/loaded/rss', 0)} MB"
        ),
        END,
    ]
    return "\n".join(lines)


def found_in(page: str) -> str | None:
    """The block that a page holds, with its marks; None without them."""
    begin, end = page.find(BEGIN), page.find(END)
    return page[begin : end + len(END)] if 0 <= begin < end else None


def write(document: Mapping[str, Any]) -> None:
    """Replace the block in docs/bench.md (raises ValueError without its marks)."""
    page = PAGE.read_text()
    old = found_in(page)
    if old is None:
        raise ValueError(f"expected the marks {BEGIN!r} and {END!r} in docs/bench.md, found none")
    PAGE.write_text(page.replace(old, block(document)))


def main() -> None:
    """Print or write the block."""
    document = json.loads(RESULTS.read_text())
    if "--write" in sys.argv[1:]:
        write(document)
    else:
        print(block(document))


if __name__ == "__main__":
    main()
