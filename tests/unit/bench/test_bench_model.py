"""The bench's model: one batch at a time, of the length that its items ask for, counted by size."""

import asyncio
import json
import time

import pytest

from bench.model import Connection, Device


async def ask(port: int, *bodies: bytes) -> list[bytes]:
    """Send bodies at once, each on its own connection; their answers' bodies."""

    async def answer_to(body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        method = b"GET /-/%b" % body[4:] if body.startswith(b"GET ") else b"POST /predict"
        body = b"" if body.startswith(b"GET ") else body
        writer.write(b"%b HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (method, len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(length)
        writer.close()
        return answer

    return await asyncio.gather(*(answer_to(body) for body in bodies))


async def test_batches_take_turns_and_are_counted() -> None:
    device = Device(20, 1)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(device), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        answers = await ask(port, b'{"instances":[1,2]}', b'{"instances":[{"a":[3]}],"more":1}')
        assert time.monotonic() - began >= 0.043
        assert [json.loads(answer)["predictions"] for answer in answers] == [[1, 2], [{"a": [3]}]]
        batches, items = await ask(port, b"GET batches", b"GET items")
        assert json.loads(batches) == {"1": 1, "2": 1}
        assert json.loads(items) == {}
        device.close()


@pytest.mark.parametrize("a_ms", [0, 1])
async def test_items_are_counted_where_that_is_asked_for(a_ms: float) -> None:
    """Each time that they begin to run; a batch with a bad item runs none."""
    device = Device(a_ms, 0, counts=True)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(device), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for body in (b'{"instances":[1, 2]}', b'{"instances":[2],"more":1}', b'{"instances":[null,3]}'):
            await ask(port, body)
        assert json.loads((await ask(port, b"GET items"))[0]) == {"1": 1, "2": 2}
        device.close()


async def test_a_model_that_costs_nothing_answers_at_once() -> None:
    device = Device(0, 0)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(device), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (answer,) = await ask(port, b'{"instances": [12345678901234567890, 2.50]}')
        assert answer == b'{"predictions":[12345678901234567890, 2.50]}'
        assert dict(device.sizes) == {2: 1}
