"""A FastAPI application as teams have them: a forest behind a route, without a line of Penstock."""

import numpy
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

app = FastAPI()
forest = RandomForestClassifier(100, random_state=0).fit(*load_digits(return_X_y=True))


class Images(BaseModel):
    """Rows of 64 numbers."""

    instances: list[list[float]]


@app.get("/ping")
def ping() -> dict:
    """Whether it is ready."""
    return {}


@app.post("/invocations")
def predict(images: Images) -> dict:
    """The digit of each row."""
    return {"predictions": forest.predict(numpy.array(images.instances)).tolist()}
