"""What listens at a port, before this machine's kernel."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_sidecar.model import restart_detector
from penstock_sidecar.model.restart_detector import ListenerIdentity
from tests.support.processes.ports import free_port


@contextlib.contextmanager
def listens(host: str = "127.0.0.1", port: int = 0, *, shared: bool = False) -> Iterator[int]:
    """A socket that listens; gives its port."""
    if ":" in host and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    with made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            made.bind((host, port or free_port()))
        except OSError:
            if port:
                raise
            made.bind((host, free_port()))  # the first one was taken at another address of this machine
        made.listen()
        yield made.getsockname()[1]


@pytest.fixture
def watched() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def watch(stack: contextlib.ExitStack, host: str, port: int) -> ListenerIdentity:
    made = ListenerIdentity(host, port)
    stack.callback(made.close)
    return made


@pytest.mark.parametrize(
    ("at", "asked"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::", "localhost"),
        ("::1", "::1"),
        ("::1", "localhost"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
    ],
)
def test_the_next_socket_at_a_port_is_another_and_the_same_one_is_not(
    watched: contextlib.ExitStack, at: str, asked: str
):
    """Reported once; while nothing listens, the process does not count as replaced."""
    with listens(at) as port:
        seen = watch(watched, asked, port)
        assert not seen.known
        assert [seen.look(), seen.look(), seen.replaced(), seen.known] == [False, False, False, True]
    assert [seen.look(), seen.replaced(), seen.known] == [False, False, True]
    for ask in (seen.look, seen.replaced):
        with listens(at, port), socket.create_connection(("::1" if at == "::" else at, port)):
            assert [ask(), seen.replaced(), seen.look()] == [True, False, False]


def test_what_was_forgotten_is_not_missed(watched: contextlib.ExitStack):
    """A refused connection has shown its end already."""
    with listens() as port:
        seen = watch(watched, "127.0.0.1", port)
        seen.look()
    seen.forget()
    assert not seen.known
    with listens(port=port):
        assert [seen.replaced(), seen.known] == [False, False]
        assert [seen.look(), seen.known, seen.replaced()] == [False, True, False]


def test_of_several_that_share_a_port_all_must_have_gone(watched: contextlib.ExitStack):
    """Workers come and go one by one: the server is the same."""
    workers = [watched.enter_context(contextlib.ExitStack()) for _ in range(3)]
    port = workers[0].enter_context(listens(shared=True))
    seen = watch(watched, "127.0.0.1", port)
    assert not seen.look()
    for worker in workers[1:]:
        worker.enter_context(listens(port=port, shared=True))
    for worker in workers * 3:  # in the end none is there that was in the beginning
        assert not seen.look()
        worker.close()
        assert not seen.replaced()
        worker.enter_context(listens(port=port, shared=True))
        assert not seen.replaced()
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.enter_context(listens(port=port, shared=True))
    assert seen.replaced()


def test_who_listens_elsewhere_says_nothing(watched: contextlib.ExitStack):
    """Another address at the same port; nor is a name asked for, or an address that may be elsewhere."""
    with listens("127.0.0.2") as port:
        mine, others = watch(watched, "127.0.0.1", port), watch(watched, "model.example", port)
        for seen in (mine, others):
            assert [seen.look(), seen.replaced(), seen.known] == [False, False, False]
        with listens(port=port):
            assert [mine.look(), mine.known, others.look(), others.known] == [False, True, False, False]
        with listens(port=port):
            assert [mine.look(), others.look()] == [True, False]
    with listens("0.0.0.0") as port:
        far = watch(watched, "10.1.2.3", port)
        assert [far.look(), far.known] == [False, False]


def test_a_kernel_without_the_answer_is_asked_once(
    watched: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
):
    """It would look for a module each time."""
    asked = 0

    class Unable(socket.socket):
        def send(self, data: bytes) -> int:  # type: ignore[override]
            nonlocal asked
            asked += 1
            return super().send(data[:16] + b"\xfe" + data[17:])  # of no family that there is

    monkeypatch.setattr(restart_detector.socket, "socket", Unable)
    with listens() as port:
        seen = watch(watched, "127.0.0.1", port)
        assert [seen.look(), seen.replaced(), seen.known] == [False, False, False]
        assert asked == 2
        assert [seen.look(), seen.replaced(), asked] == [False, False, 2]


def test_an_error_of_the_moment_leaves_what_is_known(
    watched: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
):
    """Neither a restart nor the lack of one; the next question is answered."""
    busy = struct.pack("=i", -errno.ENOMEM)

    class Busy(socket.socket):
        def recv(self, *arguments: int) -> bytes:  # type: ignore[override]
            data = super().recv(*arguments)
            return struct.pack("=IH", 36, 2) + data[6:16] + busy + bytes(16)

    with listens() as port:
        seen = watch(watched, "127.0.0.1", port)
        seen.look()
        seen.close()
        with monkeypatch.context() as patch:
            patch.setattr(restart_detector.socket, "socket", Busy)
            assert [seen.look(), seen.replaced(), seen.known] == [False, False, True]
        assert [seen.look(), seen.replaced()] == [False, False]
    with listens(port=port):
        assert seen.replaced()


@pytest.mark.parametrize("lack", ["no family", "refused", "cut", "other"])
def test_a_kernel_that_does_not_tell_is_no_error(
    watched: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, lack: str
):
    """Then nothing is known, and later it may be again."""

    class Odd(socket.socket):
        def __init__(self, *arguments: int) -> None:
            if lack == "refused":
                raise PermissionError("not here")
            super().__init__(*arguments)

        def recv(self, *arguments: int) -> bytes:  # type: ignore[override]
            data = super().recv(*arguments)
            return data[:20] if lack == "cut" else data[:8] + b"\xff" * 4 + data[12:]

    with listens() as port:
        seen = watch(watched, "127.0.0.1", port)
        with monkeypatch.context() as patch:
            if lack == "no family":
                patch.delattr(socket, "AF_NETLINK")
            else:
                patch.setattr(restart_detector.socket, "socket", Odd)
            assert [seen.look(), seen.replaced(), seen.known] == [False, False, False]
        seen.close()
        assert [seen.look(), seen.replaced(), seen.known] == [False, False, True]
