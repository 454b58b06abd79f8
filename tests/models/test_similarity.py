"""Sentence vectors: poolings, maps, similarities and what training reads of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import config

SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 2, 2, 2, 0, 0, 0], [0] * 8])
KEPT = np.array([[0, 1, 1, 0, 0, 1, 1, 0], [1, 1, 0, 1, 1, 0, 0, 0], [0] * 8])
BATCH = tiny.tokens(3, 8) | {"segment_ids": SEGMENTS, "attention_mask": (SEGMENTS > 0).astype(np.int32)}
BY_HAND = {
    "mean": lambda h, t: h.mean(axis=0),
    "mean_sqrt_len_tokens": lambda h, t: h.sum(axis=0) / np.sqrt(len(h)),
    "weightedmean": lambda h, t: (h * t[:, None]).sum(axis=0) / t.sum(),
    "max": lambda h, t: h.max(axis=0),
    "cls": lambda h, t: h[0],
    "lasttoken": lambda h, t: h[-1],
}
ALIKE = {
    "cosine": lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.linalg.norm(a - b),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}


def encoder(**fields):
    task = headjax.tasks.SentenceSimilarity(**fields)
    return tiny.model(config(attention=tiny.multi_head(2), num_layers=1, segments=0, task=task))


@pytest.mark.parametrize("masked", [False, True])
def test_poolings_of_each_sentence_in_their_order(masked):
    """Of what is not masked, at the positions that it has in its sentence; zeros of a row without tokens."""
    model, modes = encoder(pooling=tuple(BY_HAND)), list(BY_HAND.values())
    batch = BATCH | ({"pooling_mask": KEPT} if masked else {})
    output = model(batch)
    hidden, found = np.asarray(output.hidden, np.float64), np.asarray(output.embeddings)
    assert found.shape == (3, 2, len(modes) * hidden.shape[-1])
    for row, sentence in np.ndindex(2, 2):
        places = np.flatnonzero(SEGMENTS[row] == sentence + 1)
        some = np.array([t for t in places if KEPT[row, t] or not masked])
        expected = np.concatenate([mode(hidden[row, some], some - places[0] + 1) for mode in modes])
        assert_close(found[row, sentence], expected, sums=tiny.SUMS)
    assert not found[2].any()


@pytest.mark.parametrize("name", ALIKE)
def test_maps_length_and_similarity(name):
    maps = (headjax.tasks.Dense(size=5), headjax.tasks.Dense(size=3, activation=None, bias=False))
    model = encoder(dense=maps, normalize=name == "dot", similarity=name)
    first, second = jax.tree.map(np.asarray, model.params["output"]).values()
    output = model(BATCH)
    members = (SEGMENTS[:2, None] == np.array([1, 2])[:, None]) / np.array([[[3], [4]], [[2], [3]]])
    mean = members @ np.asarray(output.hidden[:2])
    vectors = np.tanh(mean @ first["kernel"] + first["bias"]) @ second["kernel"]
    vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) if name == "dot" else vectors
    assert_close(output.embeddings[:2], vectors, sums=tiny.SUMS)
    assert_close(output.logits[:2], [ALIKE[name](*pair) for pair in vectors], sums=10 * tiny.SUMS)
    alone = {"input_ids": BATCH["input_ids"][:1, :3]}
    assert_close(model(alone).embeddings[0, 0], output.embeddings[0, 0], sums=tiny.SUMS)
    assert model(alone).logits is None


NOT_OPTIMISED = pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason="jaxlib 0.12 gets NaN from this program where it does not optimise, as here"
)


@pytest.mark.parametrize(
    "fields",
    [pytest.param({"pooling": ("max", "cls")}, marks=NOT_OPTIMISED), {"normalize": True, "similarity": "euclidean"}],
)
def test_the_loss_is_that_of_cosines_and_gradients_at_padding_are_finite(fields):
    model = encoder(**fields)
    batch = BATCH | {"labels": np.array([0.3, 0.8, np.nan], np.float32)}
    cosines = [ALIKE["cosine"](*pair) for pair in np.asarray(model(batch).embeddings[:2], np.float64)]
    assert_close(model.loss(batch).total, [*np.square(np.subtract(cosines, [0.3, 0.8])), 0.0], sums=tiny.SUMS)

    def total(params):
        output = model.replace(params=params).forward(batch)
        return model.losses(output, batch).mean() + jnp.square(output.logits).sum()

    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(jax.jit(jax.grad(total))(model.params)))


def test_prompts_by_name():
    task = headjax.tasks.SentenceSimilarity(
        prompts={"query": "q: ", "passage": "p: ", "a": "a "}, default_prompt_name="a"
    )
    assert task.pair_prompts(retrieval=False) == ("a ", "a ")
    assert task.pair_prompts(retrieval=True) == ("q: ", "p: ")
    with pytest.raises(headjax.ConfigError, match=r"^default_prompt_name: unknown prompt 'c'; known: a"):
        headjax.tasks.SentenceSimilarity(prompts={"a": "b"}, default_prompt_name="c")
    with pytest.raises(headjax.ConfigError, match=r"^pooling: name at least one"):
        headjax.tasks.SentenceSimilarity(pooling=())
