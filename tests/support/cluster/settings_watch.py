"""When routers take up weights: `python -m tests.support.cluster.settings_watch ENDPOINT ADDRESS…`.

It runs in the cluster's network and looks at the settings in effect of each router, by the address of its
admin port, some hundred times a second. It prints a JSON line whenever one has other weights for the
endpoint: `{"at": …, "router": ADDRESS, "weights": {…}}`, by `time.monotonic`, which all processes of a
machine share. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp

EVERY = 0.01


async def watch(session: aiohttp.ClientSession, endpoint: str, address: str) -> None:
    """Look at one router until cancelled."""
    last = None
    while True:
        asked = time.monotonic()
        async with session.get(f"http://{address}/settings") as answer:
            settings = await answer.json(content_type=None)
        at = time.monotonic()
        (served,) = [each for each in settings["endpoints"] if each["name"] == endpoint]
        weights = {share["name"]: share["weight"] for share in served["backends"]}
        if weights != last:
            print(json.dumps({"at": at, "router": address, "weights": weights}), flush=True)
            last = weights
        await asyncio.sleep(max(0.0, asked + EVERY - time.monotonic()))


async def main(endpoint: str, addresses: list[str]) -> None:
    """Watch all routers until the input ends."""
    async with aiohttp.ClientSession() as session:
        watches = [asyncio.create_task(watch(session, endpoint, address)) for address in addresses]
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([ended, *watches], return_when=asyncio.FIRST_COMPLETED)
        for each in watches:
            each.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
