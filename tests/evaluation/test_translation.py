import math
import re
import sys

import numpy as np
import pytest

from headjax.core.errors import DataError, HeadjaxError
from headjax.data.stream import evaluation_batches
from headjax.data.text_data import ParallelText
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import evaluate_task
from headjax.evaluation.translation import corpus_bleu, translate
from headjax.models.beam import beam_search
from headjax.models.encoder_decoder import Translation
from headjax.models.sublayers import Dense
from headjax.tokenizers.learned import byte_tokenizer
from tests.tiny import model, multi_head

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
