"""Serves a small encoder of the Hugging Face Hub: embeddings, classes of texts, scores of pairs.

The model is its ONNX file, run by onnxruntime: the libraries that read pickles, and PyTorch, are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import LoadError
from penstock.formats.encoder import FIELDS, Encoder, Pooling, repository
from penstock.formats.files import MOUNTED, only_file
from penstock.formats.onnx import session


class Model(Encoder):
    """An encoder in an ONNX file.

    Args:
        path: the repository's folder; it has `tokenizer.json`, `config.json` and an ONNX file.
        file: the ONNX file below that folder. None: `onnx/model.onnx`, `model.onnx` or the only one there is.
        pooling: as for `Encoder`, like the others.
        normalize: see there.
        all_scores: see there.

    Raises:
        LoadError: a file is not there or cannot be opened, or the model is none that it can serve.
    """

    def __init__(
        self,
        path: str = MOUNTED,
        *,
        file: str | None = None,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        all_scores: bool = False,
    ) -> None:
        at = _onnx_file(repository(path), file)
        self._session = session(at)
        inputs = [each.name for each in self._session.get_inputs()]
        if unknown := sorted(set(inputs) - {*FIELDS, "position_ids"}):
            raise LoadError(
                f"expected an encoder with the inputs {', '.join(FIELDS)} in {at}, found "
                f"{', '.join(unknown)}: serve it by a class of your own"
            )
        outputs = [each.name for each in self._session.get_outputs()]
        wanted = ("logits", "sentence_embedding", "last_hidden_state", "token_embeddings")
        self._output = next((name for name in wanted if name in outputs), outputs[0])
        self.inputs = inputs
        self.classifies = self._output == "logits"
        self.pools = self._output != "sentence_embedding"
        super().__init__(path, pooling=pooling, normalize=normalize, all_scores=all_scores)

    def run_model(self, inputs: Mapping[str, Any]) -> Any:
        (found,) = self._session.run([self._output], dict(inputs))
        return found


def _onnx_file(folder: Path, file: str | None) -> Path:
    if file is not None:
        return only_file(str(folder / file), ".onnx")
    for usual in ("onnx/model.onnx", "model.onnx"):
        if (folder / usual).is_file():
            return folder / usual
    try:
        return only_file(str(folder), ".onnx")
    except LoadError as error:
        raise LoadError(f"{error}: name it in file, or export one by `optimum-cli export onnx`") from error
