"""The request decides which model answers: `penstock run branch:app`.

curl -s localhost:8000 -d '{"instances": [{"language": "spanish", "name": "Dora"}]}'
"""

from __future__ import annotations

from typing import Any

import penstock


@penstock.backend
class Spanish:
    """Greets in Spanish."""

    @penstock.batched
    def say_hello(self, names: list[str]) -> list[str]:
        """One run for a whole batch."""
        return [f"Hola {name}" for name in names]


@penstock.backend
class French:
    """Greets in French."""

    @penstock.batched
    def say_hello(self, names: list[str]) -> list[str]:
        """One run for a whole batch."""
        return [f"Bonjour {name}" for name in names]


@penstock.backend
class Greeter:
    """Asks the one that speaks the language."""

    def __init__(self, languages: dict[str, Any]) -> None:
        self.languages = languages

    async def __call__(self, name: str, language: str = "french") -> Any:
        """The item is an object of the two."""
        if language not in self.languages:
            known = ", ".join(sorted(self.languages))
            return penstock.Response(422, body={"detail": f"expected one of {known}, found {language}"})
        return await self.languages[language].say_hello(name)


app = Greeter.bind({"spanish": Spanish.bind(), "french": French.bind()})
