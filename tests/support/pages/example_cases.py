"""The examples of composition, and what each of them answers wherever it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples"
COMPOSITION = EXAMPLES / "composition"
CASES: list[tuple[str, Any, Any]] = [
    ("chain", 5, 12),
    ("operands", "a penstock", "2 words, 10 letters"),
    ("branch", {"language": "spanish", "name": "Dora"}, "Hola Dora"),
    ("branch", {"name": "Dora"}, "Bonjour Dora"),
    ("ensemble", 0.5, {"yes": 2, "no": 1}),
    ("stream", 4, [0, 1, 4, 9]),
]
"""Module, item, answer; of `stream` the pieces."""
AROUND_A_BATCH: dict[str, int] = {"maxBatchSize": 1, "maxConcurrentBatches": 64}
"""The `batching` of a class that batches in its own process."""
