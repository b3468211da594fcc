"""Versions of the digits model: `python -m penstock.serve versions:Digits`. Some are bad on purpose.

It is mounted from a ConfigMap into the image of examples/digits, so that no image has to be built for a
version. What the release sees is the same as with another image: another ModelBackend.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import model

import penstock


class Digits(model.Digits):
    """The digits model, with a fault if that is asked for.

    Args:
        path: the trained classifier, as of examples/digits.
        fails: share of the requests that it fails with 500, from 0 to 1.
        late: seconds by which each batch is late.
    """

    def __init__(self, path: str, fails: float = 0.0, late: float = 0.0) -> None:
        super().__init__(path)
        self.fails = fails
        self.late = late

    @penstock.batched
    def predict(self, images: Sequence[Any]) -> list[Any]:
        """Answer a batch, or fail some of it.

        Args:
            images: see examples/digits.

        Returns:
            A digit for each image, or a Response 500.
        """
        time.sleep(self.late)
        answers: list[Any] = super().predict(images)
        failed = penstock.Response(500, body={"detail": "this version is bad on purpose"})
        bad = [random.random() < self.fails for _ in answers]  # noqa: S311 - no secret
        return [failed if fault else answer for fault, answer in zip(bad, answers, strict=True)]
