"""Trains the two classifiers: `python train.py FOLDER` when an image is built; `Trained` where none is.

`forest` is the good one: 200 randomized trees, whose call costs milliseconds however few images it has.
`logistic` is the cheap one: a linear model that sees an eighth of the resolution.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import joblib
from digits_data import SEED, coarse, parts
from model import Digits
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

TREES = 200


def classifiers() -> dict[str, Pipeline | ExtraTreesClassifier]:
    """The classifiers by name, not yet trained."""
    linear = LogisticRegression(max_iter=1000, random_state=SEED)
    return {
        "forest": ExtraTreesClassifier(n_estimators=TREES, random_state=SEED),
        "logistic": make_pipeline(FunctionTransformer(coarse), StandardScaler(), linear),
    }


class Trained(Digits):
    """The model of a pod that has the code alone.

    Args:
        name: of the classifier.
    """

    def __init__(self, name: str) -> None:
        images, _, labels, _ = parts()
        self.classifier = classifiers()[name].fit(images, labels)


def main(folder: Path) -> dict[str, float]:
    """Train, write `<name>.joblib` into the folder, print and return the held-out accuracies."""
    folder.mkdir(parents=True, exist_ok=True)
    train_images, test_images, train_labels, test_labels = parts()
    accuracies = {}
    for name, classifier in classifiers().items():
        classifier.fit(train_images, train_labels)
        joblib.dump(classifier, folder / f"{name}.joblib", compress=3)
        accuracies[name] = float(classifier.score(test_images, test_labels))
        took = {}
        for size in (1, 32):
            start = time.perf_counter()
            for _ in range(10):
                classifier.predict(test_images[:size])
            took[size] = (time.perf_counter() - start) * 100
        print(
            f"{name}: accuracy {accuracies[name]:.1%} on {len(test_labels)} held-out images, "
            f"{took[1]:.2f} ms for 1 image, {took[32]:.2f} ms for 32"
        )
    return accuracies


if __name__ == "__main__":
    main(Path(sys.argv[1]))
