"""Serves an encoder of texts: a tokenizer, and a model that a subclass runs.

The tokenizer is `tokenizer.json`, read by tokenizers. The texts of a batch are sorted by length into a few
runs, so that a long one does not pad all the others.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers

from penstock.decorators import batched
from penstock.errors import LoadError
from penstock.formats.files import MOUNTED, misfit, only_file

FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""What an encoder's inputs are called, and where an encoding has them."""
_POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_OFFSET = ("roberta", "camembert", "mpnet")
"""Kinds of model whose positions begin after the padding's number."""
_MODULES = {"Pooling", "Normalize", "Dropout"}
"""Modules of sentence-transformers that are here, or change nothing, beside the encoder itself."""
_EXPECTED = "expected a text of Unicode's characters, or an object with the texts text and pair"
Pooling = Literal["mean", "cls", "max", "last"]


class Encoder:
    """A tokenizer and an encoder. A subclass has `run_model`, and may set `inputs` and `classifies`.

    An item is a text, or of a model that scores pairs an object with `text` and `pair`. Where the model has
    classes, an answer is an object with `label` and `score`, or with a score for each label; where it has one
    score, that number, between 0 and 1 unless `config.json` asks for the raw one; else it is the text's
    embedding. Texts are cut at the model's length.

    Args:
        path: the repository's folder; it has `tokenizer.json` and `config.json`.
        pooling: how an embedding is made of those of the tokens. None: what `1_Pooling/config.json` says,
            mean if there is no pooling module.
        normalize: whether embeddings have the length 1. None: what `modules.json` says.
        all_scores: whether an answer has the score of each label.

    Attributes:
        inputs: the arrays that `run_model` gets, of `input_ids`, `attention_mask`, `token_type_ids` and
            `position_ids`.
        classifies: whether `run_model` returns logits; else embeddings, of each token or of each text.
        pools: whether there is pooling to do; False if the model has done it.

    Raises:
        LoadError: a file is not there or cannot be opened, or the model is none of these.
    """

    __hooks__ = ("run_model",)
    inputs: Sequence[str] = ("input_ids", "attention_mask")
    classifies: bool = False
    pools: bool = True

    def __init__(
        self,
        path: str = MOUNTED,
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        all_scores: bool = False,
    ) -> None:
        folder = repository(path)
        self._config = _document(folder / "config.json", dict)
        labels = self._config.get("id2label") or {}
        self._labels = [str(labels.get(str(index), f"LABEL_{index}")) for index in range(len(labels))]
        self._independent = self._config.get("problem_type") == "multi_label_classification"
        self._all = all_scores or self._independent
        more = self._config.get("sentence_transformers")
        activation = more.get("activation_fn") if isinstance(more, dict) else None
        activation = activation or self._config.get("sbert_ce_default_activation_function")
        self._raw = "Identity" in str(activation) or self._config.get("problem_type") == "regression"
        modules = _document(folder / "modules.json", list) or []
        kinds = [str(each.get("type", "")).rpartition(".")[2] for each in modules if isinstance(each, dict)]
        layers = [kind for kind in kinds if kind not in _MODULES and not kind.endswith("Transformer")]
        if layers and self.pools:
            raise LoadError(
                f"expected an encoder with pooling alone in {folder}, found the layers {', '.join(layers)} "
                "in modules.json: export an ONNX file whose output is sentence_embedding"
            )
        self._normalize = "Normalize" in kinds if normalize is None else normalize
        self._pooling = pooling or (_pooling(folder, needed="Pooling" in kinds) if self.pools else "mean")
        self._tokenizer = self._opened(folder)

    def run_model(self, inputs: Mapping[str, Any]) -> Any:
        """Run the model once.

        Args:
            inputs: an array of int64 for each of `inputs`, of the shape (texts, tokens of the longest).

        Returns:
            An array or a tensor of the CPU with the shape (texts, tokens, width) or (texts, width), or of
            logits (texts, classes).
        """
        raise NotImplementedError

    @property
    def __tensors__(self) -> Mapping[str, Any]:
        """What tensors it takes, for its metadata: texts."""
        return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}]}

    def warmup(self) -> None:
        """Answer a text once."""
        self.predict(["warm-up"])

    @batched
    def predict(self, items: list) -> list:  # type: ignore[type-arg] # a text, or a pair of texts
        """Answer a batch by a few runs; an item that is no text is answered 422 by itself."""
        answers: list[Any] = [misfit(_EXPECTED)] * len(items)
        texts = {index: text for index, item in enumerate(items) if (text := _text(item)) is not None}
        if not texts:
            return answers
        encodings = self._tokenizer.encode_batch(list(texts.values()))
        alike: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        for index, encoding in zip(texts, encodings, strict=True):
            alike[len(encoding.ids).bit_length()].append((index, encoding))
        for group in alike.values():
            for (index, _), answer in zip(group, self._answers([each for _, each in group]), strict=True):
                answers[index] = answer
        return answers

    def _opened(self, folder: Path) -> Any:
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # its library raises no other
            raise LoadError(
                f"expected a tokenizer in {folder}/tokenizer.json that tokenizers "
                f"{tokenizers.__version__} can open: {error}"
            ) from error
        said = [
            _document(folder / "sentence_bert_config.json", dict).get("max_seq_length"),
            _document(folder / "tokenizer_config.json", dict).get("model_max_length"),
        ]
        if not any(map(_is_length, said)):  # NB: they overrule the length that it was saved with
            said.append((tokenizer.truncation or {}).get("max_length"))
        most = self._config.get("max_position_embeddings")
        if isinstance(most, int):
            said.append(most - self._first)
        if known := [length for length in said if _is_length(length)]:
            tokenizer.enable_truncation(min(known))
        tokenizer.no_padding()
        return tokenizer

    @property
    def _padding(self) -> int:
        found = self._config.get("pad_token_id")
        return found if isinstance(found, int) else 0

    @property
    def _first(self) -> int:
        """The position of a text's first token."""
        offset = any(kind in str(self._config.get("model_type")) for kind in _OFFSET)
        return self._padding + 1 if offset else 0

    def _answers(self, encodings: list[Any]) -> list[Any]:
        shape = (len(encodings), max(1, *(len(each.ids) for each in encodings)))
        fed = {name: np.zeros(shape, np.int64) for name in self.inputs}
        for name, array in fed.items():
            if name == "position_ids":
                array[:] = np.arange(shape[1]) + self._first
                continue
            array[:] = self._padding if name == "input_ids" else 0
            for row, encoding in zip(array, encodings, strict=True):
                values = getattr(encoding, FIELDS[name])
                row[: len(values)] = values
        mask = np.zeros(shape, bool)
        for row, encoding in zip(mask, encodings, strict=True):
            row[: len(encoding.ids)] = True
        found = np.asarray(self.run_model(fed), np.float32)
        if self.classifies:
            return self._judged(found)
        return list(self._embedded(found, mask))

    def _judged(self, logits: Any) -> list[Any]:
        if logits.ndim != 2:
            raise LoadError(
                "expected logits with two axes, texts and classes, found the shape "
                f"{list(logits.shape)}: a model that answers for each token needs a class of your own"
            )
        if logits.shape[1] == 1:
            scores = logits if self._raw else _sigmoid(logits)
            return scores[:, 0].tolist()  # type: ignore[no-any-return] # numpy's
        if self._independent:
            scores = _sigmoid(logits)
        else:
            scores = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        labels = self._labels
        if len(labels) != logits.shape[1]:
            labels = [f"LABEL_{index}" for index in range(logits.shape[1])]
        if self._all:
            return [dict(zip(labels, row, strict=True)) for row in scores.tolist()]
        best = scores.argmax(axis=1)
        return [
            {"label": labels[index], "score": float(row[index])}
            for index, row in zip(best, scores, strict=True)
        ]

    def _embedded(self, found: Any, mask: Any) -> Any:
        if found.ndim == 3:
            counted = mask[:, :, None]
            if self._pooling == "mean":
                found = (found * counted).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
            elif self._pooling == "max":
                found = np.where(counted, found, -np.inf).max(axis=1)
            elif self._pooling == "last":
                found = found[np.arange(len(found)), np.maximum(mask.sum(axis=1), 1) - 1]
            else:
                found = found[:, 0]
        if self._normalize:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return found


def repository(path: str) -> Path:
    """The folder with `tokenizer.json` and `config.json`: this one or one below it (raises LoadError)."""
    folder = Path(path)
    if not (folder / "tokenizer.json").is_file():
        folder = only_file(path, "tokenizer.json").parent
    if not _document(folder / "config.json", dict):
        raise LoadError(f"expected config.json beside tokenizer.json in {folder}, found none")
    return folder


def _text(item: Any) -> Any:
    """The text of an item, or both of a pair; None if it is neither."""
    if isinstance(item, list) and len(item) == 1:  # of a tensor with an axis of one
        (item,) = item
    if isinstance(item, str):
        return item if _is_text(item) else None
    if isinstance(item, Mapping) and item.keys() == {"text", "pair"}:
        pair = (item["text"], item["pair"])
        return pair if all(map(_is_text, pair)) else None
    return None


def _is_text(value: Any) -> bool:
    """Whether it is a text that UTF-8 can hold: JSON's can have half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and 0 < value < 1 << 20  # transformers writes 1e30 for none


def _sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-np.clip(values, -80, 80)))


def _document(file: Path, kind: type[Any]) -> Any:
    """What a file of JSON has; empty without the file."""
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError:
        return kind()
    except (ValueError, RecursionError) as error:
        raise LoadError(f"expected JSON in {file}: {error}") from error
    if not isinstance(document, kind):
        raise LoadError(f"expected a JSON {kind.__name__} in {file}, found a {type(document).__name__}")
    return document


def _pooling(folder: Path, *, needed: bool) -> str:
    """What the repository says; mean where it need not say anything."""
    document = _document(folder / "1_Pooling" / "config.json", dict)
    said = [document["pooling_mode"]] if "pooling_mode" in document else []
    said += [_POOLINGS.get(key, key) for key in document if key.startswith("pooling_mode_") and document[key]]
    if not said and (document.get("pooling_mode_mean_tokens", True) if document else not needed):
        return "mean"
    found = {"lasttoken": "last"}.get(said[0], said[0]) if len(said) == 1 else ""
    if found not in _POOLINGS.values():
        raise LoadError(
            f"expected one of the poolings {', '.join(_POOLINGS.values())} in {folder}/1_Pooling/config.json,"
            f" found {', '.join(map(str, said)) or 'none'}: name one in pooling"
        )
    return str(found)
