"""`python -m bench.holding`: all cases of holding a slot in simulated time, with and without it.

Writes bench/results/holding.json and holding.md. The same seeds give the same figures on every machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.holding import table
from bench.holding.cases import RATIOS, Named, Row, cases, ratio, simulate

RESULTS = Path(__file__).parent.parent / "results" / "holding.json"


def measured(named: Named, rows: list[Row]) -> dict[str, Any]:
    """A case's figures by policy (medians over the seeds), and the ratios.

    Args:
        named: the case.
        rows: one for each seed.
    """
    figures = {
        policy: {name: round(statistics.median(row[policy][name] for row in rows), 4) for name in found}
        for policy, found in rows[0].items()
    }
    return {
        "figures": figures,
        "ratios": {name: [round(value, 4) for value in ratio(rows, name)] for name in RATIOS},
    }


def _simulate(task: tuple[int, int]) -> tuple[int, Row]:
    number, seed = task
    return number, simulate(list(cases())[number], seed)


def main() -> None:
    """Simulate, write both files, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.holding", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2, help="at the same time (default: 2)")
    arguments = parser.parse_args()
    every = list(cases())
    rows: dict[int, list[Row]] = {number: [] for number in range(len(every))}
    tasks = [(number, seed + 1) for number in rows for seed in range(arguments.seeds)]
    with multiprocessing.Pool(arguments.processes) as pool:
        for done, (number, row) in enumerate(pool.imap(_simulate, tasks), 1):
            rows[number].append(row)
            print(f"\r[holding] {done} of {len(tasks)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    document = {
        "seeds": arguments.seeds,
        "cases": {named.name: measured(named, rows[number]) for number, named in enumerate(every)},
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    page = table.page(document)
    RESULTS.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
