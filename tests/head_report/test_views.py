"""What the attention viewer is given: attention without padding, and predictions with heads switched off."""

import base64
import re

import numpy as np
import pytest

import headjax
from headjax.head_report import study as viewing
from headjax.head_report.study import MOST_TOKENS, views
from headjax.heads.agreement import agreement
from tests import tiny
from tests.hub.directories import T5, model_of
from tests.models.test_encoder import config as encoder


def weights_of(stack):
    shape = (len(stack["heads"]), len(stack["queries"]), len(stack["keys"]))
    return np.frombuffer(base64.b64decode(stack["weights"]), np.uint8).reshape(shape) / 255


def test_every_head_is_shown_without_padding():
    model = tiny.model(tiny.decoder_config())
    batch = tiny.tokens(2, 6) | {"attention_mask": np.arange(6) < np.array([[4], [6]])}
    found = views(model, batch)
    attention = model(batch, attention=True).attention["decoder"]
    for row, (view, length) in enumerate(zip(found, (4, 6), strict=True)):
        stack = view["stacks"]["decoder"]
        assert stack["heads"] == [str(head) for head in headjax.all_heads(model.config)]
        assert stack["queries"] == stack["keys"] == tuple(map(str, batch["input_ids"][row, :length]))
        wanted = np.concatenate([np.asarray(layer)[row] for layer in attention])[:, :length, :length]
        np.testing.assert_allclose(weights_of(stack), wanted, atol=0.5 / 255 + 1e-6)


def test_a_switch_gives_what_a_pruned_model_predicts():
    model = tiny.model(tiny.decoder_config())
    batch = tiny.tokens(1, 6)
    (view,) = views(model, batch)
    assert set(view["without"]) == {*map(str, headjax.all_heads(model.config)), "decoder/0", "decoder/1"}
    layer = [head for head in headjax.all_heads(model.config) if head.layer == 1]
    for name, heads in {"decoder/0/2": [headjax.HeadId("decoder", 0, 2)], "decoder/1": layer}.items():
        pruned = headjax.prune(model, heads)
        assert view["without"][name]["change"] == pytest.approx(agreement(model, pruned, [batch]).distance, rel=1e-3)
        best = int(np.asarray(pruned(batch).logits)[0, -1].argmax())
        assert view["without"][name]["prediction"].startswith(f"{best} (")


@pytest.mark.parametrize(
    ("output", "pattern"),
    [(headjax.tasks.Classification(classes=3), r"[0-2] \(\d+\.\d%\)"), (headjax.tasks.Regression(), r"-?[\d.e-]+")],
)
def test_predictions_are_in_words(output, pattern):
    (view,) = views(tiny.model(encoder(num_layers=1, task=output)), tiny.tokens(1, 6))
    predictions = [view["whole"], *(one["prediction"] for one in view["without"].values())]
    assert all(re.fullmatch(pattern, text) for text in predictions)
    assert len(set(predictions)) > 1


def test_long_examples_and_many_bytes_are_cut(monkeypatch):
    model = tiny.model(tiny.decoder_config(tiny.layer(), max_length=40))
    found = views(model, tiny.tokens(5, 40))
    assert [len(view["stacks"]["decoder"]["keys"]) for view in found] == [MOST_TOKENS] * viewing.MOST_EXAMPLES
    monkeypatch.setattr(viewing, "MOST_BYTES", 2 * len(headjax.all_heads(model.config)) * MOST_TOKENS**2)
    assert len(views(model, tiny.tokens(5, 40))) == 2


def test_cross_attention_goes_from_target_to_input():
    model = model_of(T5)
    (view,) = views(model, {"input_ids": np.array([[5, 6, 7, 8]]), "labels": np.array([[9, 10, -100]])})
    stacks = view["stacks"]
    assert stacks["encoder"]["queries"] == stacks["cross"]["keys"] == ("5", "6", "7", "8")
    assert stacks["decoder"]["queries"] == stacks["cross"]["queries"] == (str(model.config.start_token), "9")
