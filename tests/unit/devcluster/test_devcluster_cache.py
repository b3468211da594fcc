"""The cache of finished things: made once, whole or not at all."""

import threading
from pathlib import Path

import pytest

from devcluster.cache import cached, digest, locked


def test_digest_frames_its_parts(tmp_path: Path) -> None:
    """Parts cannot run into each other, and a path counts by its contents."""
    file = tmp_path / "pins"
    file.write_text("ab")
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest([file]) == digest(["ab"]) == digest([b"ab"])


def test_a_finished_thing_is_not_made_again(tmp_path: Path) -> None:
    """The second call finds the first one's folder."""
    calls: list[Path] = []

    def make(into: Path) -> None:
        calls.append(into)
        into.joinpath("program").write_text("x")

    first = cached(tmp_path, "etcd", "k1", make)
    assert cached(tmp_path, "etcd", "k1", make) == first
    assert first.joinpath("program").read_text() == "x"
    assert len(calls) == 1
    assert cached(tmp_path, "etcd", "k2", make) != first


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """What is there is finished: a build that failed half-way is not, and the next call builds."""

    def fail(into: Path) -> None:
        into.joinpath("half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached(tmp_path, "etcd", "k", fail)
    assert not list(tmp_path.glob("etcd-*"))
    assert not list((tmp_path / ".tmp").iterdir())
    assert cached(tmp_path, "etcd", "k", lambda into: None).is_dir()


def test_leftovers_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    """A build that was killed left its temporary folder; the next build of the same thing takes it away."""
    stale = tmp_path / ".tmp" / "etcd-k.abc"
    stale.mkdir(parents=True)
    other = tmp_path / ".tmp" / "runc-k.abc"
    other.mkdir()
    cached(tmp_path, "etcd", "k", lambda into: None)
    assert not stale.exists()
    assert other.exists()


def test_two_runs_make_a_thing_once(tmp_path: Path) -> None:
    """The second run waits for the first and takes what it made."""
    building, go_on = threading.Event(), threading.Event()
    calls: list[Path] = []

    def make(into: Path) -> None:
        calls.append(into)
        building.set()
        assert go_on.wait(10)

    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(cached(tmp_path, "etcd", "k", make))) for _ in range(2)
    ]
    threads[0].start()
    assert building.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(calls) == 1
    assert results == [tmp_path / "etcd-k"] * 2


def test_a_lock_file_may_be_removed_by_its_holder(tmp_path: Path) -> None:
    """Who waited on the removed file takes a new one, so two never hold the lock together."""
    path = tmp_path / "lock"
    inside = threading.Event()
    held: list[bool] = []

    def second() -> None:
        inside.set()
        with locked(path):
            held.append(path.exists())

    thread = threading.Thread(target=second)
    with locked(path):
        thread.start()
        assert inside.wait(10)
        assert held == []
        path.unlink()
    thread.join(10)
    assert held == [True]
