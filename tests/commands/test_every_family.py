"""evaluate, score and prune of every family of imported models, as a user types them."""

import json

import numpy as np
import pytest

from headjax.cli import main
from headjax.hub import to_huggingface
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.commands.language_folder import TEXT
from tests.data.test_image_data import write_mnist
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import BERT, CONFIGS, model_of

pytestmark = pytest.mark.whole

TOKENS = {"vocab_size": 260, "max_position_embeddings": 40}
FAMILIES = {
    "bert": (BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 32, "num_labels": 2}, "table.tsv"),
    "gpt2": (
        CONFIGS["gpt2"] | {"vocab_size": 260, "n_positions": 40, "architectures": ["GPT2LMHeadModel"]},
        "text.txt",
    ),
    "llama": (CONFIGS["llama"] | TOKENS, "text.txt"),
    "t5": (CONFIGS["t5"] | {"vocab_size": 260, "architectures": ["T5ForConditionalGeneration"]}, "pairs.tsv"),
    "bart": (CONFIGS["bart"] | TOKENS | {"architectures": ["BartForConditionalGeneration"]}, "pairs.tsv"),
    "vit": (CONFIGS["vit"] | {"num_channels": 1, "num_labels": 2}, "mnist"),
}
HEADS = {"t5": 24, "bart": 12}
"""Where they are not 8."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    write_lines(folder / "table.tsv", "sentence\tlabel", *(f"{w} film\t{i % 2}" for i, w in enumerate(WORDS[5:13])))
    (folder / "text.txt").write_text(TEXT)
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


@pytest.mark.parametrize("command, length", [("evaluate", 0), ("evaluate", 16), ("score", 16), ("prune", 0)])
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
        assert len(data["scores"]["importance"]) == HEADS.get(family, 8)
        assert np.isfinite(list(data["scores"]["importance"].values())).all()
    else:
        assert len(data["removed"]) == 2
        assert np.isfinite(data["metrics"]["loss"])
