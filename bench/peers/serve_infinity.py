"""Infinity: its server, its queue and its batches, with the encoder of `bench.encoder` as their engine.

Infinity takes as many texts as four batches hold from its queue, sorts them by the length of their texts, and
runs them in full batches. Its own engines need torch; this one stands where `debugengine` does, so that the
same file is run on one thread in the same way as by the other servers. An embedding is the text's number and
the first value. `/-/batches` has the sizes of batches so far, `/-/seconds` the CPU that the encoder took.
"""

# ruff: noqa: E402  # what is set here has to be before Infinity is imported
import collections
import importlib
import os
import socket
import sys
import time
import types
from unittest.mock import MagicMock

os.environ |= {"DO_NOT_TRACK": "1", "INFINITY_HOME": os.environ["TMPDIR"], "INFINITY_LOG_LEVEL": "error"}
# The Hub's client, which it imports beside its own engines, is not installed: nothing is loaded from there.
sys.modules["huggingface_hub"] = sys.modules["huggingface_hub.constants"] = MagicMock()

import numpy as np
import uvicorn
from infinity_emb.args import EngineArgs
from infinity_emb.infinity_server import create_server
from infinity_emb.transformer.abstract import BaseEmbedder

from bench.padded_encoder import Encoder

SIZES, SECONDS = collections.Counter(), [0.0]


class Engine(BaseEmbedder):
    """Reads `number tokens text`, and embeds it."""

    def __init__(self, *, engine_args):
        self.engine_args = engine_args
        self.encoder = Encoder(os.environ["BENCH_ENCODER"])

    def encode_pre(self, sentences):
        words = [sentence.split(" ", 2) for sentence in sentences]
        return [int(number) for number, _, _ in words], [round(float(tokens)) for _, tokens, _ in words]

    def encode_core(self, features):
        SIZES[len(features[0])] += 1
        before = time.thread_time()
        found = self.encoder.embed(*features)
        SECONDS[0] += time.thread_time() - before
        return features[0], found

    def encode_post(self, embedding):
        return [np.array([number, row[0]], np.float64) for number, row in zip(*embedding, strict=True)]

    def tokenize_lengths(self, sentences):
        return [len(sentence) for sentence in sentences]


def main():
    """Serve until ended."""
    # NB: the package has a function of the module's name.
    selection = importlib.import_module("infinity_emb.inference.select_model")
    selection.get_engine_type_from_config = lambda _: types.SimpleNamespace(value=Engine)
    arguments = EngineArgs(
        model_name_or_path="bench",
        served_model_name="bench",
        batch_size=int(os.environ["BENCH_MAX_BATCH"]),
        engine="debugengine",
        device="cpu",
        model_warmup=False,
    )
    app = create_server(engine_args_list=[arguments])
    app.add_api_route("/-/batches", lambda: SIZES)
    app.add_api_route("/-/seconds", lambda: SECONDS[0])
    server = uvicorn.Server(
        uvicorn.Config(app, loop="uvloop", http="httptools", backlog=1024, log_level="error")
    )
    listening = socket.create_server(("127.0.0.1", int(os.environ["BENCH_PORT"])), backlog=1024)
    print("ready", flush=True)
    server.run([listening])


if __name__ == "__main__":
    main()
