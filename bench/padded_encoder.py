"""The encoder of `bench.encoder`, as each of its servers runs it; imports numpy and onnxruntime alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime


class Encoder:
    """The encoder, on one thread.

    Args:
        path: of its ONNX file.
    """

    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def embed(self, numbers: list[int], lengths: list[int]) -> Any:
        """Embed a batch, padded to its longest text.

        Args:
            numbers: of the texts.
            lengths: of the texts, in tokens.
        """
        longest = max(lengths)
        ids = np.zeros((len(lengths), longest), np.int64)
        mask = np.zeros(ids.shape, np.float32)
        for row, (number, tokens) in enumerate(zip(numbers, lengths, strict=True)):
            ids[row, :tokens] = (number + np.arange(tokens)) % 32
            mask[row, :tokens] = 1
        fed = {"ids": ids, "positions": np.arange(longest), "mask": mask}
        return self.session.run(["embedding"], fed)[0]
