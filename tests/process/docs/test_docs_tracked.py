"""What holds of every file that git tracks: short Python, and no distribution that is not ours."""

from __future__ import annotations

import re
import subprocess

from tests.unit.docs.test_docs_packages import ROOT

MAX_LINES = 800


def test_no_python_file_is_longer_than_can_be_read() -> None:
    """At 600 lines one looks whether a module is still one concept; no file that git tracks has over 800."""
    tracked = subprocess.check_output(["git", "ls-files", "-z", "*.py"], cwd=ROOT, text=True).split("\0")[:-1]
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in tracked}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_no_text_installs_a_distribution_that_is_not_ours() -> None:
    """The distribution `penstock` on PyPI is somebody else's: who copied such a line would run their code."""
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]
    texts = {name: (ROOT / name).read_text(errors="replace") for name in tracked if (ROOT / name).is_file()}
    foreign = re.compile(r"pip install[^\n]*[\s'\"]penstock(?=\[|['\"\s=<>~@]|$)", re.MULTILINE)
    assert {name: found[0] for name, text in texts.items() if (found := foreign.search(text))} == {}
    assert foreign.search("pip\x20install 'penstock[run]'"), "the expression finds the line that it is for"
