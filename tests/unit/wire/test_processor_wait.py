"""The share of time for which a thread waits for a processor, out of the kernel's counters."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock_wire.control import report
from penstock_wire.control.processor_wait import SCHEDSTAT, ProcessorWait
from penstock_wire.errors import DocumentError


class Counters:
    """A schedstat file and a clock that are set by hand."""

    def __init__(self, path: Path, text: str | None) -> None:
        self.path, self.now = path, 100.0
        self.write(text)
        self.wait = ProcessorWait(path, lambda: self.now)

    def write(self, text: str | None) -> None:
        if text is None:
            self.path.unlink(missing_ok=True)
        else:
            self.path.write_text(text)

    def share(self, text: str | None, seconds: float = 1.0) -> float | None:
        self.write(text)
        self.now += seconds
        return self.wait.share()


@pytest.mark.parametrize(
    ("before", "seconds", "after", "share"),
    [
        ("5 1000000000 7\n", 1.0, "9 1250000000 9\n", 0.25),
        ("5 1000000000 7\n", 10.0, "9 1250000000 9\n", 0.025),
        ("5 1000000000 7\n", 1.0, "9 1000000000 9\n", 0.0),
        ("5 0 7\n", 1.0, "5 9000000000 9\n", 1.0),
        ("5 1000000000 7\n", 1.0, "5 0 7\n", 0.0),
        (None, 1.0, None, None),
        (None, 1.0, "5 1000000000 7\n", None),
        ("5 1000000000 7\n", 1.0, None, None),
        ("", 1.0, "5 a 7\n", None),
    ],
)
def test_the_second_number_over_wall_time(
    tmp_path: Path, before: str | None, seconds: float, after: str | None, share: float | None
) -> None:
    """In nanoseconds, never beyond 0 to 1; nothing where the file is missing or of another form."""
    assert Counters(tmp_path / "schedstat", before).share(after, seconds) == share


def test_reports_in_quick_succession_repeat_the_last_share(tmp_path: Path) -> None:
    """A wait within a few milliseconds says nothing; nor is it lost, it counts in the next share."""
    counters = Counters(tmp_path / "schedstat", "0 0 0")
    assert counters.share("0 100000000 0", 0.1) is None
    assert counters.share("0 200000000 0", 0.9) == pytest.approx(0.2)
    assert counters.share("0 500000000 0", 0.4) == pytest.approx(0.2)
    assert counters.share("0 500000000 0", 0.6) == pytest.approx(0.3)


def test_the_kernel_of_this_machine_counts() -> None:
    """Its file has the form that is read here."""
    assert len(SCHEDSTAT.read_text().split()) == 3
    times = iter((0.0, 1e6))
    wait = ProcessorWait(clock=lambda: next(times))
    time.sleep(0)
    assert wait.share() is not None


@pytest.mark.parametrize("share", ["-0.1", "1.5", "1e400", "NaN", '"0.5"'])
def test_a_share_beyond_its_bounds_is_refused(share: str) -> None:
    """As every number of a report, it can be reckoned with."""
    head = b'{"v":1,"pod":"p","uid":"u","seq":1,"state":"ready","processorWait":'
    for decode in (report.decode_sidecar, report.decode_router):
        with pytest.raises(DocumentError):
            decode(head + share.encode() + b"}")
        assert decode(head + b"0.5}").processor_wait == 0.5
        assert decode(head + b"null}").processor_wait is None
