"""prune from the command line: heads of some stacks alone, and no work whose result nobody reads."""

import json

import pytest

from headjax.cli import main
from headjax.heads import named_orders
from headjax.models.encoder_decoder import Translation
from headjax.models.sublayers import Dense
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.commands.language_folder import write_language_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A language model and a model of three head stacks, with a text and sentence pairs."""
    folder = tmp_path_factory.mktemp("prune")
    write_language_folder(folder, max_length=32)
    recipe = Translation(
        vocab_size=257, width=tiny.WIDTH, num_layers=2, attention=tiny.multi_head(4), feed_forward=Dense(24)
    )
    tiny.model(recipe.build()).replace(tokenizer=byte_tokenizer()).save(folder / "translation")
    for language, word in {"en": "number", "de": "Zahl"}.items():
        (folder / f"pairs.{language}").write_text("".join(f"{word} {i}\n" for i in range(24)))
    return folder


def prune(folder, model, out, task, *words):
    arguments = [str(folder / model), str(folder / out), "--task", task, "--limit", "8", "--batch-size", "8"]
    assert main(["prune", *arguments, *words, "--json", str(folder / "result.json")]) == 0
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("words", [("--steps", "2"), ("--by", "fisher_blocks"), ("--by", "random")])
def test_a_count_is_spent_on_the_chosen_stacks_alone(folder, words):
    task = f"translation:{folder / 'pairs'}:en-de"
    data = prune(folder, "translation", f"out{words[1]}", task, "--remove", "7", "--stacks", "encoder", *words)
    assert len(data["removed"]) == 7
    assert all(head.startswith("encoder/") for head in data["removed"])


@pytest.mark.parametrize("share, warned", [("50%", False), ("75%", True)])
def test_fisher_blocks_warns_past_half_of_the_heads(folder, share, warned, capsys):
    arguments = [str(folder / "model"), str(folder / f"blocks{share}"), "--task", str(folder / "text.txt")]
    options = ["--limit", "8", "--batch-size", "8", "--by", "fisher_blocks", "--remove", share]
    assert main(["prune", *arguments, *options]) == 0
    assert ("fisher_blocks estimates small removals" in capsys.readouterr().out) is warned


def test_fine_tuning_between_steps_orders_once_a_step(folder, monkeypatch):
    """The order of the whole model in several steps was computed only to be counted."""
    sizes, order_heads = [], named_orders.order_heads

    def counted(model, *arguments, **options):
        sizes.append(len(named_orders.all_heads(model.config)))
        return order_heads(model, *arguments, **options)

    monkeypatch.setattr(named_orders, "order_heads", counted)
    words = ("--remove", "75%", "--steps", "3", "--fine-tune", "1")
    assert len(prune(folder, "model", "gradual", str(folder / "text.txt"), *words)["removed"]) == 3
    assert sizes == [4, 3, 2]


def test_a_count_that_cannot_be_removed_is_refused_before_any_training(folder, capsys):
    words = ("--remove", "3", "--steps", "3", "--fine-tune", "1", "--minimum", "1", "--task", str(folder / "text.txt"))
    assert main(["prune", str(folder / "model"), str(folder / "never"), *words]) == 2
    assert "asks for 3 heads, only 2 may be removed" in capsys.readouterr().err
