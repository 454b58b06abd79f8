import itertools

import jax
import numpy as np
import pytest

import headjax
from headjax.heads.agreement import agreement, agreement_kind, predictions_of, rooted
from tests import tiny
from tests.models.test_encoder import config
from tests.models.test_vision import config as vision

REMOVED = [headjax.HeadId("encoder", 0, 1)]
MASK = np.array([[1] * 8, [1] * 5 + [0] * 3, [0] * 8])
BATCH = tiny.tokens(3, 8) | {"attention_mask": MASK, "segment_ids": MASK * np.array([[1] * 4 + [2] * 4])}


def encoder(task):
    return tiny.model(config(attention=tiny.multi_head(2), num_layers=1, segments=0, task=task))


def softmax(logits):
    exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def cosine(one, other):
    return (one * other).sum(axis=-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)


def divergence(one, other):
    one, other = softmax(one.logits), softmax(other.logits)
    return (one * np.log(one / other)).sum(axis=-1)[:2].mean()


def of_embeddings(one, other):
    return cosine(*(np.einsum("bt,btd->bd", MASK, output.hidden)[:2] for output in (one, other))).mean()


def of_pairs(one, other):
    """One by one, the sentences of each pair."""
    found = []
    for row, sentence in itertools.product((0, 1), (1, 2)):
        members = BATCH["segment_ids"][row] == sentence
        found.append(cosine(*(output.hidden[row, members].mean(axis=0) for output in (one, other))))
    return np.mean(found)


def squared(one, other):
    return np.square(one.logits - other.logits)[:2].mean()


@pytest.mark.parametrize(
    ("task", "kind", "expected", "apart", "rel"),
    [
        (headjax.tasks.Classification(classes=3), "kl", divergence, lambda value: value, 1e-3),
        (headjax.tasks.NoTask(), "cosine", of_embeddings, lambda value: 1.0 - value, 1e-4),
        (headjax.tasks.SentenceSimilarity(), "cosine", of_pairs, lambda value: 1.0 - value, 1e-4),
        (headjax.tasks.Regression(), "squared_difference", squared, lambda value: value, 1e-3),
    ],
    ids=["predictions", "embeddings", "pairs", "numbers"],
)
def test_outputs_are_compared_in_the_way_of_their_task(task, kind, expected, apart, rel):
    """Between the model and itself without heads, which gates take away as well; a batch of padding adds nothing."""
    model = encoder(task)
    pruned = headjax.prune(model, REMOVED)
    found = agreement(model, pruned, [BATCH])
    outputs = [jax.tree.map(lambda array: np.asarray(array, np.float64), each(BATCH)) for each in (model, pruned)]
    assert found.kind == kind
    assert found.value == pytest.approx(expected(*outputs), rel=rel)
    assert found.distance == apart(found.value)
    assert agreement(model, model, [BATCH]).distance == pytest.approx(0.0, abs=1e-6)
    masked = agreement(model, headjax.gated(model, dict.fromkeys(REMOVED, 0.0)), [BATCH])
    assert masked.value == pytest.approx(found.value, rel=rel)
    assert agreement(model, pruned, [BATCH] * 2).value == pytest.approx(found.value)


def test_tokens_of_a_language_model_are_compared_without_padding():
    model = tiny.model(tiny.decoder_config(tiny.layer()))
    pruned = headjax.prune(model, ["decoder/0/1"])
    one, other = (softmax(np.asarray(m(BATCH).logits, np.float64)) for m in (model, pruned))
    each = (one * np.log(one / other)).sum(axis=2)
    assert agreement(model, pruned, [BATCH]).value == pytest.approx(each[MASK == 1].mean(), rel=1e-3)


def test_a_black_image_counts_and_a_row_that_fills_up_a_batch_does_not():
    fields = {"attention": tiny.multi_head(2), "num_layers": 1, "task": headjax.tasks.Classification(classes=3)}
    model = tiny.model(vision(image_size=8, patch_size=4, distillation_token=False, **fields))
    pruned = headjax.prune(model, REMOVED)
    images = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    images[1] = 0.0
    filled = {"pixel_values": np.concatenate([images, 0 * images]), "labels": np.array([2, 0, -100, -100])}
    one, other = (softmax(np.asarray(m({"pixel_values": images}).logits, np.float64)) for m in (model, pruned))
    expected = (one * np.log(one / other)).sum(axis=1).mean()
    for batch in (filled, {"pixel_values": images}):
        assert agreement(model, pruned, [batch]).value == pytest.approx(expected, rel=1e-3)
        assert headjax.reconstruct(model, [batch], REMOVED).examples == 2


@pytest.mark.parametrize(
    "task",
    [
        headjax.tasks.NoTask(),
        headjax.tasks.SentenceSimilarity(normalize=False),
        headjax.tasks.Regression(),
        headjax.tasks.Classification(classes=3),
    ],
)
def test_rows_of_padding_have_a_finite_gradient(task):
    model = encoder(task)

    def through(params):
        output = model.replace(params=params).forward(BATCH, headjax.models.ForwardOptions())
        return rooted(agreement_kind(model.config), predictions_of(model.config, output, BATCH)).sum()

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(jax.grad(through))(model.params)))
