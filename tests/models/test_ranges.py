"""Tokens, labels and positions that a model does not have are refused on the host, wherever a batch enters."""

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

import headjax
from headjax.training.run import check_vocabulary
from tests.models.test_encoder import config
from tests.tiny import VOCABULARY, decoder_config, model

IDS = np.arange(12).reshape(2, 6) % VOCABULARY


def encoder(task):
    return model(config(num_layers=1, task=task))


def changed(value, dtype=np.int64):
    ids = IDS.astype(dtype)
    ids[1, 2] = value
    return ids


@pytest.mark.parametrize("value", [-1, VOCABULARY, 2**40 + 1, -100])
@pytest.mark.parametrize(
    "call",
    [
        lambda model, batch: model(batch),
        lambda model, batch: headjax.evaluate(model, [batch]),
        lambda model, batch: headjax.score_heads(model, [batch]),
        lambda model, batch: headjax.ablate(model, [batch]),
        lambda model, batch: headjax.generate(model, batch, max_new_tokens=1),
    ],
    ids=["forward", "evaluate", "score", "ablate", "generate"],
)
def test_tokens(call, value):
    with pytest.raises(
        headjax.DataError, match=rf"^input_ids: {value} at \[1, 2\], but the model has {VOCABULARY} tokens \("
    ):
        call(model(decoder_config()), {"input_ids": changed(value)})


@pytest.mark.parametrize(
    "task, labels, what",
    [
        (
            headjax.tasks.Classification(classes=3),
            [0, -1],
            r"labels: -1 at \[1\], but the model has 3 classes \(0 to 2, or -100",
        ),
        (headjax.tasks.Classification(classes=3), [0, 3], r"labels: 3 at \[1\], but the model has 3 classes"),
        (headjax.tasks.TokenClassification(classes=2), changed(2) % 2 + (changed(2) == 2) * 5, r"labels: 5 at "),
        (
            headjax.tasks.MaskedLanguageModel(),
            changed(VOCABULARY),
            rf"labels: {VOCABULARY} at \[1, 2\], but the model has",
        ),
    ],
)
def test_labels(task, labels, what):
    with pytest.raises(headjax.DataError, match=what):
        headjax.evaluate(encoder(task), [{"input_ids": IDS, "labels": np.asarray(labels)}])


def test_segments_and_positions():
    bert = encoder(headjax.tasks.Classification(classes=3))
    with pytest.raises(headjax.DataError, match=r"^token_type_ids: "):
        bert({"input_ids": IDS, "token_type_ids": changed(2) * (changed(-7) == -7)})
    with pytest.raises(headjax.DataError, match=r"^position_ids: "):
        bert({"input_ids": IDS, "position_ids": changed(12)})


def test_a_tokenizer_is_measured_by_its_largest_id():
    """Three tokens, one of them beyond a vocabulary of 10: a count would pass it."""
    backend = Backend(models.WordLevel({"a": 0, "b": 3, "[UNK]": 17}, unk_token="[UNK]"))
    tokenizer = headjax.Tokenizer(backend.to_str(), (("unk_token", "[UNK]"),))
    assert (tokenizer.vocab_size, tokenizer.largest_id) == (3, 17)
    data = headjax.data.TaskData(tokenizer, [], [], {})
    check_vocabulary(decoder_config(vocab_size=18), data)
    with pytest.raises(headjax.ConfigError, match=r"the model embeds 17 tokens, but the tokenizer's ids reach 17$"):
        check_vocabulary(decoder_config(vocab_size=17), data)
