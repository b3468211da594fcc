"""A generator of the SDK behind a real sidecar: one run, and each client reads its own stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.sidecar_process import Pair, Program, Reply, until

MODULE = """
import pathlib, time
import penstock

END = penstock.END


class Speak:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def wait(self, name):
        while not (self.folder / name).exists():
            time.sleep(0.01)

    @penstock.batched
    def predict(self, items):
        with open(self.folder / "runs", "a") as file:
            file.write(f"{len(items)}\\n")
        if "plug" in items:
            self.wait("gate")
        if "raise" in items:
            raise RuntimeError("of one client")
        try:
            step = 0
            while True:
                entries = [self.entry(item, step) for item in items]
                yield entries
                if all(entry is END for entry in entries):
                    return
                if "endless" in items:
                    time.sleep(0.001)
                step += 1
                if step == 1 and "held" in items:
                    self.wait("second")
        finally:
            (self.folder / f"closed-{len(items)}").touch()

    def entry(self, item, step):
        if item == "bad":
            return ValueError("no")
        if item == "endless":
            return step
        return item[step] if step < len(item) else END
"""
EVENTS = {"accept": "text/event-stream"}
LINES = {"accept": "application/x-ndjson"}


class SpeakPair(Pair):
    """A sidecar before a model that speaks letter by letter."""

    async def start_model(self) -> None:
        """Start it; a call that holds "plug" goes on when there is a file `gate`."""
        self.folder = self.settings_path.parent
        (self.folder / "speak.py").write_text(MODULE)
        arguments = json.dumps({"folder": str(self.folder)})
        self.model = Program(
            "penstock.serve",
            "speak:Speak",
            "--port=0",
            f"--init-kwargs={arguments}",
            env={"PYTHONPATH": str(self.folder)},
        )
        self.model_url = "http://" + (await self.model.start()).removeprefix("data=")

    async def batched(self, *asks: Any, items: tuple[int, ...] = ()) -> list[Any]:
        """What these got, which share the next batch; `items` of each, where they have more than one."""
        first = asyncio.create_task(self.predict("plug"))
        await self.until_state(ongoing=1, queued=0)
        tasks = []
        for index, ask in enumerate(asks):
            tasks.append(asyncio.create_task(ask))
            await self.until_state(queued=sum(items[: index + 1]) or index + 1)
        (self.folder / "gate").touch()
        reply = await first
        assert (reply.status, reply.document) == (200, {"predictions": [["p", "l", "u", "g"]]})
        return list(await asyncio.gather(*tasks))

    @property
    def batches(self) -> list[int]:
        """The items of each run so far."""
        return [int(line) for line in (self.folder / "runs").read_text().split()]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[SpeakPair]:
    pair = SpeakPair(tmp_path)
    await pair.start()
    yield pair
    await pair.stop()


async def test_each_client_of_a_batch_reads_its_own_stream(pair: SpeakPair) -> None:
    """One run for all; an item that is bad has a real status, and costs the others nothing."""
    replies = await pair.batched(*(pair.predict(text, headers=EVENTS) for text in ("ab", "bad", "", "xyz")))
    bodies = [b'data: "a"\n\ndata: "b"\n\n', None, b"", b'data: "x"\n\ndata: "y"\n\ndata: "z"\n\n']
    for reply, body in zip(replies, bodies, strict=True):
        if body is not None:
            assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream")
            assert reply.body == body
    assert (replies[1].status, replies[1].headers["x-penstock-reason"]) == (500, "model_failed")
    assert replies[1].document["detail"] == "the model failed with ValueError: no"
    assert pair.batches == [1, 4]
    await pair.until_load(0)


async def test_clients_that_accept_other_forms_are_in_other_batches(pair: SpeakPair) -> None:
    """NDJSON, events, and whole answers; a request of several items alone."""
    lines, events, whole, several = await pair.batched(
        pair.predict("ab", headers=LINES),
        pair.predict("ab", headers=EVENTS),
        pair.predict("ab", "c"),
        pair.predict("a", "b", headers=EVENTS),
        items=(1, 1, 2, 2),
    )
    assert (lines.headers["content-type"], lines.body) == ("application/x-ndjson", b'"a"\n"b"\n')
    assert events.body == b'data: "a"\n\ndata: "b"\n\n'
    assert whole.document == {"predictions": [["a", "b"], ["c"]]}
    assert (several.status, several.headers["content-type"]) == (200, "text/event-stream")
    assert sorted(several.body.split(b"\n\n")) == [
        b"",
        b'data: {"index":0,"end":true}',
        b'data: {"index":0,"piece":"a"}',
        b'data: {"index":1,"end":true}',
        b'data: {"index":1,"piece":"b"}',
    ]
    assert sorted(pair.batches) == [1, 1, 1, 2, 2]


async def first_line(pair: SpeakPair, item: str, *, then: str = "") -> Reply:
    """The beginning of a stream, whose client then goes away, or touches a file and reads on."""
    async with pair.session.post(
        pair.data + "/v1/models/m:predict", json={"instances": [item]}, headers=LINES
    ) as answer:
        body = await answer.content.readline()
        if then:
            (pair.folder / then).touch()
            body += await answer.read()
        else:
            answer.close()
        return Reply(answer.status, answer.headers, body)


@pytest.mark.parametrize("alone", [False, True])
async def test_pieces_come_as_the_model_makes_them(pair: SpeakPair, alone: bool) -> None:
    """The first one before the model makes the second: alone, and with others."""
    held = first_line(pair, "held", then="second")
    whole = b'"h"\n"e"\n"l"\n"d"\n'
    if alone:
        reply = await held
    else:
        reply, mate = await pair.batched(held, pair.predict("x", headers=LINES))
        assert mate.body == b'"x"\n'
    assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/x-ndjson", whole)
    assert "server-timing" in reply.headers


@pytest.mark.parametrize("alone", [False, True])
async def test_who_leaves_harms_nobody_and_the_last_one_ends_the_generator(
    pair: SpeakPair, alone: bool
) -> None:
    if alone:
        left = await first_line(pair, "endless")
    else:
        left, again, mate = await pair.batched(
            first_line(pair, "endless"),
            first_line(pair, "endless"),
            pair.predict("long enough", headers=LINES),
        )
        assert (again.body, mate.body.count(b"\n")) == (b"0\n", len("long enough"))
    assert left.body == b"0\n"

    async def closed() -> bool:
        return (pair.folder / f"closed-{1 if alone else 3}").exists()

    await until(closed)
    await pair.until_load(0)
    assert (await pair.predict("ok")).document == {"predictions": [["o", "k"]]}


async def test_who_makes_a_generator_raise_is_found_before_it_has_begun(pair: SpeakPair) -> None:
    """As with a method that returns: the sidecar runs parts of the batch again; the others have streams."""
    replies = await pair.batched(*(pair.predict(text, headers=LINES) for text in ("a", "raise", "b")))
    assert [reply.status for reply in replies] == [200, 500, 200]
    assert [replies[0].body, replies[2].body] == [b'"a"\n', b'"b"\n']
    assert replies[1].document["detail"] == "the model raised RuntimeError: of one client"
