"""Encoders of the Hub in their ONNX form: a small one made at random, with a tokenizer made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tokenizers
from onnx import TensorProto, helper, numpy_helper

from penstock.errors import LoadError
from penstock.formats import huggingface
from penstock.formats.encoder import Encoder
from penstock.response import Response
from penstock.target import served_names

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(60))]
WIDTH = 4
TABLE = np.random.default_rng(5).standard_normal((len(WORDS), WIDTH)).astype(np.float32)
KINDS = np.random.default_rng(6).standard_normal((2, WIDTH)).astype(np.float32)
TEXTS = ["w1", "w2 w3", " ".join(WORDS[4:40]), "w9 w8 w7", " ".join(WORDS[20:60])]


def hidden(text: str, pair: str | None = None) -> Any:
    """The last hidden state of a text alone, without padding."""
    parts = [["[CLS]", *text.split(), "[SEP]"], [] if pair is None else [*pair.split(), "[SEP]"]]
    pieces = [
        TABLE[[WORDS.index(word) for word in part]] + KINDS[at] for at, part in enumerate(parts) if part
    ]
    return np.concatenate(pieces)


def repository(folder: Path, *, classes: int = 0, file: str = "onnx/model.onnx", **config: Any) -> Path:
    """Write an encoder: its state is that of words and kinds of tokens, its logits a part of their sum."""
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_padding(length=128)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "pad_token_id": 0} | config))
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "length"]) for name in names]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Gather", ["kinds", "token_type_ids"], ["kind"]),
        helper.make_node("Add", ["words", "kind"], ["last_hidden_state"]),
    ]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["n", "length", WIDTH])
    constants = [numpy_helper.from_array(TABLE, "table"), numpy_helper.from_array(KINDS, "kinds")]
    if classes:
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "two"], ["column"]),
            helper.make_node("Mul", ["last_hidden_state", "column"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "one"], ["sum"], keepdims=0),
            helper.make_node("Slice", ["sum", "zero", "classes", "one"], ["logits"]),
        ]
        numbers = {"zero": 0, "one": 1, "two": 2, "classes": classes}
        constants += [numpy_helper.from_array(np.array([value]), name) for name, value in numbers.items()]
        output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", classes])
    graph = helper.make_graph(nodes, "encoder", inputs, [output], constants)
    (folder / file).parent.mkdir(exist_ok=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / file)
    return folder


def written(folder: Path, nodes: list[Any], inputs: list[str], output: str) -> Path:
    """Replace the encoder by another, whose output has three axes."""
    described = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "length"]) for name in inputs]
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", "length", WIDTH])
    table = numpy_helper.from_array(TABLE, "table")
    graph = helper.make_graph(nodes, "encoder", described, [made], [table])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "onnx/model.onnx")
    return folder


def test_embeddings_are_those_of_each_text_alone(tmp_path: Path) -> None:
    """Whatever is in the batch; by the pooling of the repository's own files, and cut at its length."""
    folder = repository(tmp_path / "plain")
    model = huggingface.Model(str(tmp_path))  # the folder above, as an archive may have one
    model.warmup()
    means = [hidden(text).mean(axis=0) for text in TEXTS]
    half = "w1 \ud800"  # as JSON may have it, and UTF-8 may not
    answers = model.predict([TEXTS[0], 7, *TEXTS[1:], {"text": "w1"}, half, {"text": "w1", "pair": half}])
    refused = [answers.pop(1), answers.pop(), answers.pop(), answers.pop()]
    np.testing.assert_allclose(answers, means, rtol=1e-5)
    assert all(isinstance(each, Response) and each.status == 422 for each in refused)
    np.testing.assert_allclose(model.predict([""]), [hidden("").mean(axis=0)], rtol=1e-5)

    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 1000000000000000019884624838656}')
    (folder / "1_Pooling").mkdir()
    for said, pool in (
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda state: state[0]),
        ({"pooling_mode_max_tokens": True}, lambda state: state.max(axis=0)),
        ({"pooling_mode": "lasttoken"}, lambda state: state[-1]),
    ):
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
        cut = [pool(hidden(" ".join(text.split()[:4]))) for text in TEXTS]
        expected = [each / np.linalg.norm(each) for each in cut]
        np.testing.assert_allclose(huggingface.Model(str(folder)).predict(TEXTS), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        (
            {"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True},
            "pooling_mode_weightedmean_tokens",
        ),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "pooling_mode_mean_sqrt_len_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls, mean"),
        ({"pooling_mode_mean_tokens": False}, "none"),
        (None, "none"),
    ],
)
def test_a_pooling_that_is_not_here_is_refused(
    tmp_path: Path, said: dict[str, Any] | None, found: str
) -> None:
    """Unless the user names another: it would answer other embeddings, and nobody would see it."""
    folder = repository(tmp_path / "m")
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Pooling"}]')
    if said is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    with pytest.raises(LoadError, match=rf"expected one of the poolings mean, cls, .*found {found}:"):
        huggingface.Model(str(folder))
    huggingface.Model(str(folder), pooling="cls")


@pytest.mark.parametrize(
    ("sentence", "most", "expected"), [(20, 1 << 100, 20), (None, 30, 30), (None, 1 << 100, 10), (50, 30, 30)]
)
def test_texts_are_cut_at_the_length_that_the_repository_says(
    tmp_path: Path, sentence: int | None, most: int, expected: int
) -> None:
    """The length that the tokenizer was saved with counts only if nothing else says one."""
    folder = repository(tmp_path / "m", max_position_embeddings=40)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(10)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": sentence}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": most}))
    text = " ".join(WORDS[4:60])
    cut = hidden(" ".join(text.split()[: expected - 2])).mean(axis=0)
    np.testing.assert_allclose(huggingface.Model(str(folder)).predict([text]), [cut], rtol=1e-4)


@pytest.mark.parametrize(("kind", "first"), [("bert", 0), ("xlm-roberta", 2)])
def test_positions_begin_where_the_model_expects_them(tmp_path: Path, kind: str, first: int) -> None:
    """Those of a model like RoBERTa after the padding's number."""
    folder = repository(tmp_path / "m", model_type=kind, pad_token_id=1)
    node = helper.make_node("Gather", ["table", "position_ids"], ["last_hidden_state"])
    written(folder, [node], ["position_ids"], "last_hidden_state")
    expected = TABLE[first : first + 4].mean(axis=0)
    np.testing.assert_allclose(huggingface.Model(str(folder)).predict(["w1 w2"]), [expected], rtol=1e-5)


class Own(Encoder):
    """A user's model, which any library may run: here numpy."""

    inputs = ("input_ids", "token_type_ids")

    def run_model(self, inputs: Any) -> Any:
        return TABLE[inputs["input_ids"]] + KINDS[inputs["token_type_ids"]]


class Judge(Own):
    classifies = True

    def run_model(self, inputs: Any) -> Any:
        return super().run_model(inputs)[:, 0, :2]


def test_a_class_of_the_users_runs_the_model_and_has_all_else(tmp_path: Path) -> None:
    """The same answers as by the ONNX file, an item that is no text alone is refused."""
    repository(tmp_path, id2label={"0": "bad", "1": "good"})
    assert served_names("Own", Own) == ["predict"]
    found = Own(str(tmp_path)).predict([*TEXTS, 7])
    for text, answer in zip(TEXTS, found, strict=False):
        np.testing.assert_allclose(answer, hidden(text).mean(axis=0), rtol=1e-5, atol=1e-6)
    assert isinstance(found[-1], Response)
    assert {answer["label"] for answer in Judge(str(tmp_path)).predict(TEXTS)} <= {"bad", "good"}
    with pytest.raises(NotImplementedError):
        Encoder(str(tmp_path)).predict(["w1"])


def test_classes_and_scores_of_pairs(tmp_path: Path) -> None:
    """As the library of the Hub answers: the best label, each label, or of a pair one score."""
    labels = {"0": "bad", "1": "good", "2": "so-so"}
    folder = repository(tmp_path / "classes", classes=3, id2label=labels)
    logits = np.array([hidden(text).sum(axis=0)[:3] for text in TEXTS])
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    soft = powers / powers.sum(axis=1, keepdims=True)
    answers = huggingface.Model(str(folder)).predict(TEXTS)
    assert [each["label"] for each in answers] == [labels[str(at)] for at in soft.argmax(axis=1)]
    np.testing.assert_allclose([each["score"] for each in answers], soft.max(axis=1), rtol=1e-4)
    every = huggingface.Model(str(folder), all_scores=True).predict(TEXTS)
    assert [list(each) for each in every] == [list(labels.values())] * len(TEXTS)
    np.testing.assert_allclose([list(each.values()) for each in every], soft, rtol=1e-4, atol=1e-7)

    folder = repository(tmp_path / "many", classes=3, problem_type="multi_label_classification")
    (many,) = huggingface.Model(str(folder)).predict(TEXTS[:1])
    np.testing.assert_allclose(
        [many[f"LABEL_{at}"] for at in range(3)], 1 / (1 + np.exp(-logits[0])), rtol=1e-4
    )

    raw = [hidden("w1", text).sum(axis=0)[0] for text in TEXTS]
    pairs = [{"text": "w1", "pair": text} for text in TEXTS]
    folder = repository(tmp_path / "pairs", classes=1, id2label={"0": "LABEL_0"})
    scores = huggingface.Model(str(folder)).predict(pairs)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-np.array(raw))), rtol=1e-4)
    identity = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    folder = repository(tmp_path / "raw", classes=1, **identity)
    np.testing.assert_allclose(huggingface.Model(str(folder)).predict(pairs), raw, rtol=1e-4)


def test_a_repository_that_cannot_be_served_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """No ONNX file, several, another kind of model, a layer that is not here."""
    folder = repository(tmp_path / "m", file="int8.onnx")
    huggingface.Model(str(folder))
    onnx.save(onnx.load(folder / "int8.onnx"), folder / "fp16.onnx")
    with pytest.raises(LoadError, match=r"found .*fp16.onnx, .*int8.onnx: name it in file, or export one by"):
        huggingface.Model(str(folder))
    huggingface.Model(str(folder), file="int8.onnx")
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]')
    with pytest.raises(LoadError, match=r"found the layers Dense in modules.json: export an ONNX file whose"):
        huggingface.Model(str(folder), file="int8.onnx")
    kinds = ("Transformer", "WeightedLayerPooling", "LSTM", "Pooling", "Normalize")
    (folder / "modules.json").write_text(
        json.dumps([{"type": f"sentence_transformers.models.{kind}"} for kind in kinds])
    )
    with pytest.raises(LoadError, match=r"found the layers WeightedLayerPooling, LSTM in modules.json"):
        huggingface.Model(str(folder), file="int8.onnx")
    tokens = repository(tmp_path / "tokens")
    written(tokens, [helper.make_node("Gather", ["table", "input_ids"], ["logits"])], ["input_ids"], "logits")
    with pytest.raises(LoadError, match=r"expected logits with two axes, .* found the shape \[1, \d+, 4\]"):
        huggingface.Model(str(tokens)).warmup()
    described = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["n"])
    same = helper.make_tensor_value_info("same", TensorProto.FLOAT, ["n"])
    node = helper.make_node("Identity", ["pixel_values"], ["same"])
    graph = helper.make_graph([node], "other", [described], [same])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / "model.onnx")
    with pytest.raises(LoadError, match=r"expected an encoder with the inputs .* found pixel_values: serve"):
        huggingface.Model(str(folder))
    (folder / "modules.json").unlink()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadError, match=r"expected a tokenizer in .* that tokenizers .* can open"):
        huggingface.Model(str(folder), file="fp16.onnx")
    (folder / "config.json").unlink()
    with pytest.raises(LoadError, match=r"expected config.json beside tokenizer.json"):
        huggingface.Model(str(folder))
