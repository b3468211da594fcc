"""A class with requirements: `penstock deploy topics:Topics --requirements requirements.txt`."""

from __future__ import annotations

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline

import penstock

EXAMPLES = {
    "billing": ("my invoice is wrong", "please refund the payment", "the card was charged twice"),
    "delivery": ("where is my parcel", "the package has not arrived", "the courier lost my order"),
    "account": ("i cannot log in", "reset my password", "delete my account please"),
}


@penstock.backend(spec={"batching": {"maxBatchSize": 64}})
class Topics:
    """Says what a message to a shop is about."""

    def __init__(self) -> None:
        topics = [topic for topic, texts in EXAMPLES.items() for _ in texts]
        texts = [text for texts in EXAMPLES.values() for text in texts]
        self.model = make_pipeline(TfidfVectorizer(), MultinomialNB()).fit(texts, topics)

    @penstock.batched
    def predict(self, texts: list[str]) -> list[str]:
        """Answer all messages with one call of the classifier."""
        topics: list[str] = self.model.predict(texts).tolist()
        return topics
