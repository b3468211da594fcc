"""`python -m bench.releases`: releases of healthy and bad candidates, by Penstock and by Argo's arithmetic.

Figures go to bench/results/releases.json, a table to bench/results/releases.md. They are the same each time,
but for the time that a verdict takes.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

from bench.releases.kinds import KINDS, by_rate, cost, measured

RESULTS = Path(__file__).parent.parent / "results" / "releases.json"


ABOUT = """\
# Releases, simulated

Written by `python -m bench.releases`: {releases} releases of each kind by Penstock, a fifth as many by Argo
Rollouts' arithmetic. Steps of 10, 25 and 50 % with a pause of 2 min at each, then all; where there are
copies, 10 % of them for a minute before. 500 requests a second on average, metrics judged every 30 s. Base
rates change: a day of one hour, an outage that hits both in half of the releases, noise. Harmed: requests
within 30 min that the candidate failed, or made slower.

| candidate | by | taken back | within two intervals | promoted | decided after, median | harmed, mean |
| -- | -- | -- | -- | -- | -- | -- |"""
RATES = """
Intervals of 30 s until a verdict, median and what 99 of 100 need, by requests a second of the candidate (at a
weight of 10), or copies:
"""


def table(document: dict[str, Any]) -> str:
    """The figures as a page in Markdown."""
    releases = next(iter(document["kinds"].values()))["Penstock"]["releases"]
    lines = [ABOUT.format(releases=releases)]
    for name, rows in document["kinds"].items():
        for who, row in rows.items():
            of = row["releases"]
            who_words = who if who == "Penstock" else f"Argo Rollouts' arithmetic, {who}"
            lines.append(
                f"| {name} | {who_words} | {100 * row['rolled_back'] / of:.2f} % "
                f"| {100 * row['within_two_intervals'] / of:.2f} % | {100 * row['promoted'] / of:.2f} % "
                f"| {row['seconds_median']:.0f} s | {row['harmed_mean']:,.0f} |"
            )
    rates = list(next(iter(document["by_rate"].values())))
    lines += [
        RATES,
        "| candidate | " + " | ".join(f"{rate}/s" for rate in rates) + " |",
        "| -- |" + " -- |" * len(rates),
    ]
    for name, row in document["by_rate"].items():
        cells = (f"{row[rate]['median']}, {row[rate]['of_100_99']}" for rate in rates)
        lines.append(f"| {name} | " + " | ".join(cells).replace("999", "> 240") + " |")
    times = ", ".join(f"{name} {micros:.0f}" for name, micros in document["verdict_us"].items())
    return "\n".join([*lines, "", f"Time of a verdict, µs: {times} ({document['python']}).", ""])


def main() -> None:
    """Simulate, write both files, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.releases", description=__doc__)
    parser.add_argument("--releases", type=int, default=10_000, help="of each kind (default: 10000)")
    parser.add_argument("--processes", type=int, default=2, help="at the same time (default: 2)")
    chosen = parser.parse_args()
    document = {
        "python": f"Python {platform.python_version()}",
        "bad": [name for name, kind in KINDS.items() if kind.bad],
        "verdict_us": cost(),
        "by_rate": by_rate(max(min(chosen.releases, 1000) // 5, 1)),
        "kinds": measured(chosen.releases, chosen.processes),
    }
    RESULTS.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    page = table(document)
    RESULTS.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
