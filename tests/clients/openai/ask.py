"""AzureOpenAI's client, which sends its key in `api-key`: `python ask.py URL COUNT KEY...`.

Asks for COUNT embeddings with each key, all at once, and prints the embedding of each by key.
"""

import asyncio
import json
import sys

from openai import AsyncAzureOpenAI


async def embeddings(url, count, key):
    """The embeddings of texts of 1 to COUNT characters."""
    async with AsyncAzureOpenAI(
        base_url=f"{url}/openai/deployments/m/v1", api_key=key, api_version="2024-10-21", max_retries=0
    ) as client:
        asked = [
            client.embeddings.create(model="m", input="x" * length, encoding_format="float")
            for length in range(1, count + 1)
        ]
        return [answer.data[0].embedding for answer in await asyncio.gather(*asked)]


async def main(url, count, *keys):
    answers = await asyncio.gather(*[embeddings(url, int(count), key) for key in keys])
    print(json.dumps(dict(zip(keys, answers, strict=True))))


asyncio.run(main(*sys.argv[1:]))
