"""A new user's script: two tables and a Hugging Face directory become a pruned, exported, re-evaluated classifier."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from headjax.cli import main
from headjax.heads.head_id import HeadId
from headjax.heads.ordering import by_score
from headjax.heads.scores import normalize_layers
from headjax.models.model import load
from tests import tiny
from tests.closeness import close_to
from tests.data.vocabulary import TEXT, WORDS, write_lines, write_vocabulary

pytestmark = pytest.mark.whole

SCRIPT = """
import   downloaded model
finetune model mine --train train.tsv --epochs 10 --learning-rate 0.01 --batch-size 8
score    mine --task test.tsv --train train.tsv
prune    mine pruned --task test.tsv --train train.tsv --remove 50%
export   pruned pruned-hf
evaluate pruned --task test.tsv
"""
"""Six commands, as they stand after `headjax` in a shell."""

LAYERS, HEADS, WIDTH, HIDDEN = 2, 4, 16, 32


def write_downloaded(folder):
    """Write an encoder as Hugging Face publishes one: `config.json`, safetensors, a vocabulary; weights are random."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    tensors = {}

    def dense(name, inputs, outputs):
        tensors[f"{name}.weight"] = 0.1 * generator.standard_normal((outputs, inputs)).astype(np.float32)
        tensors[f"{name}.bias"] = np.zeros(outputs, np.float32)

    def norm(name):
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)

    for name, rows in {"word": len(WORDS), "position": 32, "token_type": 2}.items():
        table = 0.5 * generator.standard_normal((rows, WIDTH)).astype(np.float32)
        tensors[f"embeddings.{name}_embeddings.weight"] = table
    norm("embeddings.LayerNorm")
    for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{layer}.attention.{part}", WIDTH, WIDTH)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", WIDTH, HIDDEN)
        dense(f"{layer}.output.dense", HIDDEN, WIDTH)
        norm(f"{layer}.output.LayerNorm")
    dense("pooler.dense", WIDTH, WIDTH)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(WORDS), "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": HIDDEN,
        "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(fields))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    write_vocabulary(folder)


def write_table(path, films, seed):
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(TEXT[:12], generator.integers(2, 12))) for _ in range(films)]
    rows = (f"{text}\t{'praise' if 'good' in text.split() else 'blame'}" for text in texts)
    return write_lines(path, "sentence\tlabel", *rows)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder in which the script has run, and the JSON of each of its commands."""
    folder = tmp_path_factory.mktemp("user")
    write_downloaded(folder / "downloaded")
    write_table(folder / "train.tsv", 120, seed=1)
    write_table(folder / "test.tsv", 60, seed=2)
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in SCRIPT.strip().splitlines():
            words = line.split()
            assert main([*words, "--json", "result.json"]) == 0, line
            found[words[0]] = json.loads((folder / "result.json").read_text())
    return folder, found


def test_the_classifier_has_learned_and_says_on_what_it_was_judged(results):
    _, found = results
    assert found["finetune"]["classes"] == ["blame", "praise"]
    assert found["prune"]["metrics_before"]["accuracy"] > 0.9
    assert found["score"]["selection"] == {"task": "train.tsv", "split": "all", "examples": 120}
    assert found["prune"]["evaluation"] == {"task": "test.tsv", "split": "all", "examples": 60}


def test_half_of_the_heads_are_gone_those_with_the_least_importance(results):
    folder, found = results
    raw = {HeadId.parse(head): value for head, value in found["score"]["scores"]["importance"].items()}
    assert found["import"]["heads"] == len(raw) == LAYERS * HEADS
    least = by_score(normalize_layers(raw))[: LAYERS * HEADS // 2]
    assert sorted(found["prune"]["removed"]) == sorted(map(str, least))
    pruned = load(folder / "pruned")
    assert sum(layer.num_heads for layer in pruned.config.attentions()["encoder"]) == LAYERS * HEADS // 2
    assert found["prune"]["parameters"] < found["prune"]["parameters_before"]


def test_the_numbers_are_those_of_the_pruned_model_before_and_after_the_export(results, capsys):
    folder, found = results
    metrics = found["evaluate"]["metrics"]
    assert found["evaluate"]["evaluation"] == found["prune"]["evaluation"]
    assert metrics == close_to(found["prune"]["metrics"], sums=tiny.SUMS)
    fields = json.loads((folder / "pruned-hf" / "config.json").read_text())
    assert fields["id2label"] == {"0": "blame", "1": "praise"}
    assert main(["import", str(folder / "pruned-hf"), str(folder / "again")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(folder / "again"), "--task", str(folder / "test.tsv"), "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)["metrics"]
    assert again["accuracy"] == metrics["accuracy"]
    assert again == close_to(metrics, sums=tiny.SUMS)
    assert load(folder / "again").config.output.names == ("blame", "praise")
