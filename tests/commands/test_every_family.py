"""evaluate, score and prune of every family of imported models, as a user types them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headjax.cli import main
from headjax.hub import to_huggingface
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.test_image_data import write_mnist
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import BERT, LLAMA, T5, model_of

pytestmark = pytest.mark.whole

GPT2 = {
    "model_type": "gpt2", "vocab_size": 260, "n_positions": 40, "n_embd": 8, "n_layer": 2, "n_head": 4,
    "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip
BART = {
    "model_type": "bart", "vocab_size": 260, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12,
    "max_position_embeddings": 40, "architectures": ["BartForConditionalGeneration"],
}  # fmt: skip
VIT = {
    "model_type": "vit", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 12,
    "image_size": 4, "patch_size": 2, "num_channels": 1, "num_labels": 2,
    "architectures": ["ViTForImageClassification"],
}  # fmt: skip
FAMILIES = {
    "bert": (BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 32, "num_labels": 2}, "table.tsv"),
    "gpt2": (GPT2, "text.txt"),
    "llama": (LLAMA | {"vocab_size": 260, "architectures": ["LlamaForCausalLM"]}, "text.txt"),
    "t5": (T5 | {"vocab_size": 260, "architectures": ["T5ForConditionalGeneration"]}, "pairs.tsv"),
    "bart": (BART, "pairs.tsv"),
    "vit": (VIT, "mnist"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    write_lines(folder / "table.tsv", "sentence\tlabel", *(f"{w} film\t{i % 2}" for i, w in enumerate(WORDS[5:13])))
    text = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}, no more." for i in range(900))
    (folder / "text.txt").write_text(text)
    write_lines(folder / "pairs.tsv", "en\tde", *(f"good {i}\tgut {i}" for i in range(8)))
    (folder / "mnist").mkdir()
    write_mnist(folder / "mnist")
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, folder):
    """An imported model and the task that is its family's."""
    fields, data = FAMILIES[request.param]
    model = model_of(fields)
    if request.param == "bert":
        model = model.replace(tokenizer=wordpiece_tokenizer(write_vocabulary(folder)))
    elif request.param != "vit":
        model = model.replace(tokenizer=byte_tokenizer())
    to_huggingface(model, folder / "hf" / request.param)
    out = folder / "models" / request.param
    assert main(["import", str(folder / "hf" / request.param), str(out)]) == 0
    task = {"pairs.tsv": f"translation:{folder}/pairs.tsv:en-de", "mnist": f"mnist:{folder}/mnist"}
    return request.param, out, task.get(data, str(folder / data))


@pytest.mark.parametrize("length", [0, 16])
@pytest.mark.parametrize("command", ["evaluate", "score", "prune"])
def test_commands(case, folder, capsys, command, length):
    family, model, task = case
    words = [command, str(model), "--task", task, "--limit", "4", "--batch-size", "2", "--json", "-"]
    words += ["--beams", "0"] if command == "evaluate" and family in ("t5", "bart") else []
    words += ["--length", str(length)] if length else []
    if command == "prune":
        words[2:2] = [str(folder / "pruned" / family), "--remove", "2", "--overwrite"]
    capsys.readouterr()
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    if command == "evaluate":
        assert data["examples"] == 4
        assert np.isfinite(data["metrics"]["loss"])
    elif command == "score":
        heads = 24 if family in ("t5", "bart") else 8
        assert len(data["scores"]["importance"]) == heads
        assert np.isfinite(list(data["scores"]["importance"].values())).all()
    else:
        assert len(data["removed"]) == 2
        assert np.isfinite(data["metrics"]["loss"])


def test_a_length_that_the_model_does_not_have(case, capsys):
    family, model, task = case
    capsys.readouterr()
    assert main(["evaluate", str(model), "--task", task, "--length", "0"]) == 2
    assert "--length: must be an integer of at least 1, got 0" in capsys.readouterr().err
    if family in ("bert", "gpt2", "bart"):
        assert main(["evaluate", str(model), "--task", task, "--length", "999"]) == 2
        assert "length: 999 tokens, but the model has " in capsys.readouterr().err
