"""Measures: pretraining, translations and their BLEU; weights and losses that are not finite end with a name."""

import math
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from headjax.core.errors import DataError, HeadjaxError, ParameterError
from headjax.core.tensors import all_finite
from headjax.data import PreparedData
from headjax.data.forms import PretrainingForm
from headjax.data.prepare import prepare
from headjax.data.rows import Row, RowSource
from headjax.data.stream import evaluation_batches
from headjax.data.text_data import ParallelText
from headjax.evaluation.measures import MaskedAndNext
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import Task, evaluate, evaluate_task, measure_of, measure_task
from headjax.evaluation.translation import corpus_bleu, translate
from headjax.hub import from_huggingface, to_huggingface
from headjax.models.beam import beam_search
from headjax.models.encoder import Bert
from headjax.models.encoder_decoder import Translation
from headjax.models.sublayers import Dense
from headjax.models.tasks import NoTask, Pretraining
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import TEXT, WORDS, write_vocabulary
from tests.hub.directories import BERT, model_of, rewrite
from tests.tiny import decoder_config, model, multi_head, tokens

NAME = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_one_value_is_found_in_any_type(dtype):
    for value in (np.nan, np.inf, -np.inf):
        array = np.full((3, 5), 1.5, dtype)
        assert all_finite(array)
        array[2, 3] = value
        assert not all_finite(array)
        assert not all_finite(jnp.asarray(array))


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_import_names_file_and_tensor(tmp_path, dtype):
    def damage(tensors):
        tensors[NAME] = tensors[NAME].copy()
        tensors[NAME][3, 4] = np.inf

    to_huggingface(model_of(BERT), tmp_path / "hf")
    rewrite(tmp_path / "hf", damage)
    with pytest.raises(ParameterError, match=rf"model\.safetensors: {NAME}"):
        from_huggingface(tmp_path / "hf", dtype=dtype)


def damaged(value):
    fine = model(decoder_config())
    embeddings = {**fine.params["embeddings"]}
    embeddings["token"] = embeddings["token"].at[3, 0].set(value)
    return fine.replace(params={**fine.params, "embeddings": embeddings})


def test_save_and_evaluate_name_the_weights_or_the_batch(tmp_path):
    with pytest.raises(ParameterError, match=r"^embeddings/token: "):
        damaged(np.nan).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(HeadjaxError, match=r"^embeddings/token: "):
        evaluate(damaged(np.nan), [tokens()])
    # Finite weights whose products are not.
    with pytest.raises(HeadjaxError, match=r"^evaluation: .*batch 0.*(nan|inf)$"):
        evaluate(damaged(3e38), [tokens()])


@pytest.fixture(scope="module")
def pretraining(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    generator = np.random.default_rng(0)
    sentences = [" ".join(generator.choice(TEXT[:12], 6)).capitalize() + "." for _ in range(60)]
    texts = [" ".join(sentences[start : start + 15]) for start in range(0, 60, 15)]
    rows = RowSource.of([Row(f"document {number}", {"text": text}) for number, text in enumerate(texts)])
    splits = {"train": rows, "validation": rows}
    tokenizer = wordpiece_tokenizer(write_vocabulary(folder))
    prepare("bert_pretraining", PretrainingForm(length=24), splits, tokenizer, folder / "out")
    config = PreparedData(path=str(folder / "out"))
    data = config.load()
    return Task("pretraining", data, measure_of(data))


def test_both_accuracies_count_what_is_right(pretraining):
    recipe = Bert(
        attention=multi_head(), feed_forward=Dense(16), vocab_size=len(WORDS), max_length=24, width=16, num_layers=1,
        task=Pretraining(),
    )  # fmt: skip
    bert = model(recipe.build())
    found = measure_task(bert, pretraining, batch_size=4)
    right = masked = following = examples = 0
    for batch in pretraining.batches(4):
        output = bert(batch)
        chosen = np.asarray(output.logits).argmax(axis=-1)
        right += int((chosen == batch["labels"]).sum())
        masked += int((batch["labels"] >= 0).sum())
        follows = np.asarray(output.extra_logits["seq_relationship_logits"]).argmax(-1)
        following += int((follows == batch["next_sentence_label"]).sum())
        examples += int((batch["next_sentence_label"] >= 0).sum())
    assert found.examples == examples
    assert found.metrics["masked_accuracy"] == pytest.approx(right / masked)
    assert found.metrics["next_sentence_accuracy"] == pytest.approx(following / examples)
    assert 0 < right < masked
    assert (pretraining.headline, pretraining.higher_is_better) == ("masked_accuracy", True)


def test_only_for_models_that_are_pretrained(pretraining):
    recipe = Bert(attention=multi_head(), feed_forward=Dense(16), vocab_size=len(WORDS), width=16, task=NoTask())
    with pytest.raises(HeadjaxError, match=r"^task: .* a pretraining"):
        MaskedAndNext().fit(recipe.build())


LINES = ["ab", "abc", "b", "cab", "bca"]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation")
    (folder / "val.xx").write_text("\n".join(LINES))
    (folder / "val.yy").write_text("\n".join(line.upper() for line in LINES))
    return f"{folder}/val"


@pytest.fixture(scope="module")
def translator():
    recipe = Translation(vocab_size=257, width=16, num_layers=1, attention=multi_head(), feed_forward=Dense(16))
    return model(recipe.build()).replace(tokenizer=byte_tokenizer())


def test_perplexity_of_translations(translator, prefix):
    task = load_task(f"translation:{prefix}:xx-yy", translator, length=8)
    metrics = evaluate_task(translator, task, batch_size=4)
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    assert metrics["bits_per_byte"] > metrics["loss"] / np.log(2)  # the end tokens stand for no byte
    with pytest.raises(HeadjaxError, match=r"^task: expected translation:PATH:SOURCE-TARGET"):
        load_task("translation:data/file", translator)


def test_translations_are_those_of_beam_search(translator, prefix):
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    pairs = ParallelText(validation=prefix, source="xx", target="yy", max_length=8).load(byte_tokenizer()).validation
    found = translate(translator, pairs, batch_size=4, beams=2, max_new_tokens=4)
    assert len(found.texts) == 5
    assert 0 <= found.bleu.score <= 100
    batch = next(evaluation_batches(pairs, 4))
    tokens = beam_search(
        translator, {name: batch[name] for name in ("input_ids", "attention_mask")}, beams=2, max_new_tokens=4,
        end_token=256,
    ).tokens  # fmt: skip
    first = np.asarray(tokens)[0, 0]
    assert found.texts[0] == byte_tokenizer().decode(first[: [*first, 256].index(256)]).strip()


def test_bleu_and_its_signature():
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    assert corpus_bleu(["the cat sat on the mat ."], ["the cat sat on the mat ."]).score == pytest.approx(100.0)
    short = corpus_bleu(["the cat sat on the"], ["the cat sat on the mat ."])
    assert short.score == pytest.approx(100 * math.exp(1 - 7 / 5))  # every n-gram is right; only the length counts
    assert "tok:none" in corpus_bleu(["a b c d"], ["a b c d"], tokenize="none").signature


def test_bleu_by_hand():
    """Of 6 words 5 are right, of their 5 pairs 2, of 4 triples 1, of 3 quadruples none, which counts as half of one."""
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    found = corpus_bleu(["the cat is on the mat"], ["there is a cat on the mat"])
    precision = (5 / 6 * 2 / 5 * 1 / 4 * (1 / 2) / 3) ** 0.25
    assert found.score == pytest.approx(100 * math.exp(1 - 7 / 6) * precision)
    assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:[0-9.]+", found.signature)


def test_pairs_are_checked_and_sacrebleu_is_named_where_it_is_missing(monkeypatch):
    with pytest.raises(DataError, match=r"^bleu: 1 translations and 2 references"):
        corpus_bleu(["a"], ["a", "b"])
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(DataError, match=r"^bleu: .*sacrebleu"):
        corpus_bleu(["a"], ["a"])
