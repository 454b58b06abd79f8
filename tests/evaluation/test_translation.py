from __future__ import annotations

import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.data.stream import evaluation_batches
from headjax.data.text_data import ParallelText
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import evaluate_task
from headjax.evaluation.translation import translate
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
