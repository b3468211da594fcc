"""A small model to try Penstock with: `penstock run penstock.examples:Digits`.

Handwritten digits of 8 x 8 pixels; a softmax regression that was fitted to the 1347 training images of
scikit-learn's `load_digits` (E. Alpaydin, C. Kaynak, UCI 1998). It is right for 98 % of the 450 others, and
needs nothing but Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Annotated, Any

import msgspec

import penstock

SIDE = 8
INK = 16
THREE = ["..###...", "..#.##..", ".....#..", "....#...", "...###..", ".....#..", "..#..#..", "..####.."]

Image = Annotated[Any, msgspec.Meta(examples=[THREE])]
"""One that has an example, for the page at /docs."""


class Digits:
    """Says which digit an image shows, and how sure it is."""

    def __init__(self) -> None:
        document = json.loads(resources.files(__name__).joinpath("digits.json").read_text())
        self._weights: list[list[float]] = document["weights"]
        self._bias: list[float] = document["bias"]

    @penstock.batched
    def predict(self, images: Sequence[Image]) -> list[Any]:
        """Answer a batch of images.

        Args:
            images: each 8 rows of 8 numbers from 0 (paper) to 16 (ink), or 8 texts such as `..###...`, in
                which `.` is paper and anything else ink.

        Returns:
            For each image the digit and its probability; an error 422 for what is not an image.
        """
        return [self._answer(image) for image in images]

    def _answer(self, image: Any) -> Any:
        try:
            rows = [[_ink(pixel) for pixel in row] for row in image]
        except TypeError:
            rows = []
        if [len(row) for row in rows] != [SIDE] * SIDE:
            detail = (
                f"expected {SIDE} rows of {SIDE} pixels: numbers from 0 to {INK}, or texts such as '..###...'"
            )
            return penstock.Response(422, body={"detail": detail})
        pixels = [pixel for row in rows for pixel in row]
        scores = [
            bias + sum(map(float.__mul__, weights, pixels))
            for weights, bias in zip(self._weights, self._bias, strict=True)
        ]
        digit = max(range(10), key=scores.__getitem__)
        total = sum(math.exp(score - scores[digit]) for score in scores)
        return {"digit": digit, "probability": round(1 / total, 4)}


def _ink(pixel: Any) -> float:
    if isinstance(pixel, str):
        return 0.0 if pixel == "." else float(INK)
    if isinstance(pixel, bool) or not isinstance(pixel, int | float) or not 0 <= pixel <= INK:
        raise TypeError
    return float(pixel)
