"""`python -m bench.match_rules`: what match rules and keys cost a request, in microseconds, compiled.

In one process and without sockets: what is measured is some hundred nanoseconds. The best of several turns
counts, since whatever else runs only adds.
"""

from __future__ import annotations

import random
import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator
from functools import partial

from bench import product
from penstock_router.choice.affinity import Hashed, WeightedChoice
from penstock_router.choice.match_rules import MatchRules
from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pool import Pods
from penstock_wire.build import BUILD
from penstock_wire.control.traffic_rules import Match
from penstock_wire.headers import Headers

TURNS, CALLS = 15, 10_000
RULES = 50
FIELDS: Headers = (
    (b"host", b"digits.demo"),
    (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"gzip"),
    (b"content-type", b"application/json"),
    (b"x-user", b"user-4711"),
    (b"x-tenant", b"tenant-31"),
    (b"cookie", b"a=1; session=0123456789abcdef; group=beta; theme=dark"),
    (b"authorization", b"Bearer abcdefgh"),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
)


def microseconds(call: Callable[[], object]) -> float:
    """The least that a call takes."""
    return min(timeit.repeat(call, number=CALLS, repeat=TURNS)) / CALLS * 1e6


def rules() -> Iterator[tuple[str, list[Match]]]:
    """Fifty rules of each kind, and of all kinds."""
    values = [Match(header="x-user", value=f"user-{n}") for n in range(RULES)]
    prefixes = [Match(header="x-tenant", prefix=f"tenant-{n}x") for n in range(RULES)]
    expressions = [Match(header="x-user", regex=f"user-{n}[a-z]+(-[0-9]+)?") for n in range(RULES)]
    cookies = [Match(cookie="group", value=f"group-{n}") for n in range(RULES)]
    yield "values", values
    yield "prefixes", prefixes
    yield "regular expressions", expressions
    yield "cookies", cookies
    yield "of each", [*values[:20], *prefixes[:10], *expressions[:10], *cookies[:10]]


def main() -> int:
    """Print the table."""
    if len(sys.argv) == 1:
        product.choose()  # for the process that measures
        return subprocess.run([sys.executable, "-m", "bench.match_rules", "-"], check=False).returncode
    print(f"{BUILD}; the best of {TURNS} turns of {CALLS} calls, in microseconds a call")
    for kind, made in rules():
        table = MatchRules([(f"b{number}", (rule,)) for number, rule in enumerate(made)])
        assert not table.find(FIELDS)
        print(f"{RULES} rules, {kind}: {microseconds(partial(table.find, FIELDS)):.2f}")
    key, choice = Hashed(b"user-4711"), WeightedChoice()
    print(f"a key's hash: {microseconds(partial(Hashed, b'user-4711')):.2f}")
    for count in (2, 32):
        weights = {f"b{number}": number + 1 for number in range(count)}
        print(f"the backend of a key, of {count}: {microseconds(partial(choice.of, key, weights)):.2f}")
    for count in (3, 100):
        pods = Pods(clock=lambda: 1000.0, random_source=random.Random(1), changed=lambda: None)
        pods.set_slices({"b": tuple(Address(host=f"h{number}", port=1) for number in range(count))})
        print(f"the pod of a key, of {count}: {microseconds(partial(pods.pick_by_key, 'b', key)):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
