"""The handwritten digits that come with scikit-learn, always cut alike into training and held-out parts.

`python digits_data.py` prints the held-out part as JSON. The image has it as a file, so that a client in the
cluster need not load scikit-learn for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SEED = 7
HELD_OUT = 450
"""Images, of 1797, that no model sees in training."""

FILE = Path(__file__).with_name("held_out.json")

Images = list[list[int]]
"""Images of 8 x 8 pixels, row by row, each pixel from 0 to 16."""


def parts() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images, held-out images, training labels, held-out labels; the same ones each time."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(pixels, labels, test_size=HELD_OUT, random_state=SEED, stratify=labels)
    return split[0], split[1], split[2], split[3]


def held_out() -> tuple[Images, list[int]]:
    """The held-out images as JSON has them, and what they show."""
    if FILE.is_file():
        document = json.loads(FILE.read_text())
        return document["images"], document["labels"]
    _, images, _, labels = parts()
    return images.astype(int).tolist(), labels.tolist()


def coarse(images: np.ndarray) -> np.ndarray:
    """8 x 8 pixels → 4 x 2, each the mean of eight. Trained files refer to it, so it lives here."""
    return images.reshape(-1, 4, 2, 2, 4).mean(axis=(2, 4)).reshape(-1, 8)


if __name__ == "__main__":
    print(json.dumps(dict(zip(("images", "labels"), held_out(), strict=True))))
