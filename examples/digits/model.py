"""A scikit-learn classifier behind Penstock: `python -m penstock.serve model:Digits`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import joblib
import numpy as np

import penstock

PIXELS = 64


class Digits:
    """Says which digit an image shows.

    Args:
        path: the trained classifier, a joblib file that train.py wrote.
    """

    def __init__(self, path: str) -> None:
        self.classifier = joblib.load(path)
        self.classifier.predict(np.zeros((1, PIXELS)))  # the first call is slow: let it be over when ready

    @penstock.batched
    def predict(self, images: Sequence[Any]) -> list[Any]:
        """Answer a batch with one call of the classifier.

        Args:
            images: each 64 numbers, or 8 rows of 8.

        Returns:
            A digit for each image; a Response 422 for what is no image, which concerns its own request only.
        """
        answers: list[Any] = [None] * len(images)
        good: list[int] = []
        rows: list[np.ndarray] = []
        for index, image in enumerate(images):
            try:
                row = np.asarray(image, dtype=np.float64)
            except (TypeError, ValueError):
                row = np.empty(0)
            if row.size == PIXELS and np.isfinite(row).all():
                good.append(index)
                rows.append(row.reshape(PIXELS))
            else:
                answers[index] = penstock.Response(422, body={"detail": f"expected {PIXELS} finite numbers"})
        if rows:
            for index, digit in zip(good, self.classifier.predict(np.stack(rows)).tolist(), strict=True):
                answers[index] = digit
        return answers
