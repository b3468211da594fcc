"""Work for one request around a batch for many: `python -m penstock.serve greeter:Greeter --port 8080`.

`__call__` has one request at a time, many of them at once; what it awaits has the names of all of them. The
`userConfig` of its backend changes how they are batched while it runs, as `{"max_batch_size": 16}`.
"""

from __future__ import annotations

from typing import Any

import penstock


class Greeter:
    """Greets people, many in one go."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    @penstock.batch(max_batch_size=8)
    async def greetings(self, names: list[str]) -> list[str]:
        """Stands for a model that is best asked for many at once."""
        self.batches.append(len(names))
        return [f"Hello {name}!" for name in names]

    async def __call__(self, name: str, *, loud: bool = False) -> dict[str, Any]:
        """Answer one request."""
        if not name:
            raise ValueError("expected a name, found an empty one")
        greeting = await self.greetings(name.strip())
        return {"greeting": greeting.upper() if loud else greeting, "batches": len(self.batches)}

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Take a userConfig; what is wrong in it is reported, and nothing changes."""
        self.greetings.configure(**config)
