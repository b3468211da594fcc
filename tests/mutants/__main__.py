"""`python -m tests.mutants`: whether the tests catch each kept mutant; exit code 1 where one survives.

First the named tests run on the code as it is, and must pass; then once for each mutant, on a copy with that
one edit, and each named test must fail, by what it asserts. A word on the command line chooses the mutants
that have it in their name or promise.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import sys
import tempfile
from pathlib import Path

from tests.mutants.table import MUTANTS, Mutant
from tests.mutants.trial import CannotApplyError, Verdict, judge, run


def main() -> int:
    """Try the mutants; print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only mutants with this in their name or promise")
    parser.add_argument("--quiet", action="store_true", help="print only those that are not caught")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trials at once")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.word in f"{mutant.name} | {mutant.breaks}"]
    if not chosen:
        print(f"no mutant has {options.word!r}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
        root = Path(folder)
        wrong = unmutated(chosen, root / "none")
        if wrong:
            print("the tests fail on the code as it is:", *wrong, sep="\n  ", file=sys.stderr)
            return 1
        caught = 0
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            trials = [pool.submit(judge, mutant, root / str(number)) for number, mutant in enumerate(chosen)]
            for mutant, trial in zip(chosen, trials, strict=True):
                try:
                    caught += show(trial.result(), quiet=options.quiet)
                except (CannotApplyError, RuntimeError) as error:
                    print(f"INVALID   {mutant.name}\n          {error}", flush=True)
    print(f"{caught} of {len(chosen)} mutants caught")
    return 0 if caught == len(chosen) else 1


def unmutated(chosen: list[Mutant], folder: Path) -> list[str]:
    """Failures of the tests that judge, on the code as it is."""
    tests = dict.fromkeys(test for mutant in chosen for test in mutant.tests)
    # A whole file stands for the tests in it, which need not be named again.
    files = {test for test in tests if "::" not in test}
    failures = run([test for test in tests if test in files or test.split("::")[0] not in files], folder)
    return [f"{test}: {line}" for test, lines in failures.items() for line in lines]


def show(verdict: Verdict, *, quiet: bool) -> bool:
    """Print one line, and whatever did not catch it; returns whether all did."""
    if quiet and not verdict.survived:
        return True
    word = "SURVIVED" if verdict.survived else "caught"
    said = verdict.said[0][:70] if verdict.said else ""
    print(f"{word:9} {verdict.mutant.name:72} {verdict.seconds:5.1f} s  {said}", flush=True)
    for test in verdict.survived:
        print(f"          {test}")
    return not verdict.survived


if __name__ == "__main__":
    sys.exit(main())
