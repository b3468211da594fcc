"""The bench's model: one batch at a time, of the length that its items ask for, counted by size."""

import asyncio
import json
import time

from bench.model import Connection, Device


async def ask(port: int, *bodies: bytes) -> list[bytes]:
    """Send bodies at once, each on its own connection; their answers' bodies."""

    async def answer_to(body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /predict HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
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
        (batches,) = await ask(port, b"")
        assert json.loads(batches) == {"1": 1, "2": 1}
        device.close()


async def test_a_model_that_costs_nothing_answers_at_once() -> None:
    device = Device(0, 0)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(device), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (answer,) = await ask(port, b'{"instances": [12345678901234567890, 2.50]}')
        assert answer == b'{"predictions":[12345678901234567890, 2.50]}'
        assert dict(device.sizes) == {2: 1}
