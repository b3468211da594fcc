"""The model that the package brings: it is right, and README's command gives README's answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from penstock.examples import Digits
from penstock.response import Response

ROOT = Path(__file__).parents[3]


def test_the_model_knows_digits_that_it_was_not_fitted_to() -> None:
    pixels, labels = load_digits(return_X_y=True)
    _, held_out, _, wanted = train_test_split(pixels, labels, test_size=450, random_state=7, stratify=labels)
    answers = Digits().predict(held_out.reshape(-1, 8, 8).tolist())
    right = sum(answer["digit"] == label for answer, label in zip(answers, wanted, strict=True))
    assert right / len(answers) > 0.97


def test_the_first_answer_of_the_readme_is_what_the_model_says() -> None:
    """README shows a request and its answer; who copies the one gets the other."""
    text = (ROOT / "README.md").read_text()
    request = re.search(r"curl .*localhost:8000/predict -d '(.*?)'\n(.*)", text, re.DOTALL)
    assert request is not None
    answers = Digits().predict(json.loads(request[1])["instances"])
    assert json.loads(request[2].splitlines()[0]) == {"predictions": answers}


def test_what_is_not_an_image_fails_alone() -> None:
    good = ["." * 8] * 8
    bad = [
        3,
        None,
        [[0] * 8] * 7,
        ["." * 7] * 8,
        [[17] * 8] * 8,
        [[True] * 8] * 8,
        [[None] * 8] * 8,
        {"a": 1},
    ]
    first, *refused, last = Digits().predict([good, *bad, good])
    assert first == last
    assert [answer.status for answer in refused if isinstance(answer, Response)] == [422] * len(bad)
