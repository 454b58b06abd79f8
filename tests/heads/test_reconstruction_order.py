import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.heads import agreement
from headjax.heads.batches import batches_for
from headjax.heads.refit import layer_removals
from tests import tiny
from tests.models.test_encoder import config

GENERATOR = np.random.default_rng(0)
HEADS, SIZE, WIDTH = 4, 3, 5
FEATURES = HEADS * SIZE
BATCHES = [
    tiny.tokens(4, 8, seed) | {"attention_mask": np.array([[1] * 8, [1] * 5 + [0] * 3] * 2)} for seed in range(2)
]


def layer():
    """Contexts, their second moments, and W_O."""
    contexts = GENERATOR.standard_normal((200, FEATURES)) @ GENERATOR.standard_normal((FEATURES, FEATURES))
    return contexts, contexts.T @ contexts / 200, GENERATOR.standard_normal((HEADS, SIZE, WIDTH))


def refit_error(contexts, output, removed):
    """The mean squared error of the best map of the other heads, by numpy's least squares."""
    kept = [i for i in range(FEATURES) if i // SIZE not in removed]
    target = contexts @ output.reshape(FEATURES, WIDTH)
    solved, *_ = np.linalg.lstsq(contexts[:, kept], target, rcond=None)
    return float(np.square(target - contexts[:, kept] @ solved).sum() / len(contexts))


@pytest.mark.parametrize("groups", [[(head,) for head in range(HEADS)], [(0, 2), (1, 3)]])
def test_errors_add_up_to_the_error_of_the_heads_removed_together(groups, monkeypatch):
    monkeypatch.setattr("headjax.heads.refit.DAMPING", 1e-12)
    contexts, moments, output = layer()
    found = layer_removals(moments, output, groups)
    for count in range(len(found.order)):
        expected = refit_error(contexts, output, {head for group in found.order[:count] for head in group})
        assert found.errors[count] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert found.errors[-1] == pytest.approx(np.square(contexts @ output.reshape(FEATURES, WIDTH)).sum() / 200)
    first = {group: refit_error(contexts, output, set(group)) for group in groups}
    assert found.order[0] == min(first, key=first.get)


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(tiny.layer(), tiny.layer()))


def test_a_twin_goes_first_without_labels(model):
    """Head 2 of layer 1 reads as head 0 does, so the other can write for both, whatever it writes."""

    def twin(found):
        names = [name for name in found.params if not name.startswith("output")]
        axes = {name: tiny.weights(found.config, 16, 16)[name].out_sharding.index("heads") for name in names}
        index = np.array([0, 1, 0, 3])
        return found.holding({name: jnp.take(found.params[name], index, axis=axes[name]) for name in names})

    order = headjax.reconstruction_order(headjax.map_attention(model, twin, layers=[1]), BATCHES)
    assert order[0] in {headjax.HeadId("decoder", 1, 0), headjax.HeadId("decoder", 1, 2)}
    assert sorted(order) == sorted(headjax.all_heads(model.config))


def test_a_layer_that_the_output_hardly_depends_on_goes_first(model):
    """Errors of layer 0 are the larger ones, but the feed-forward and the stream drown them."""

    def loud(found):
        return found.holding({"output": {"kernel": found.params["output"]["kernel"] * (1e-3 if found.layer else 1.0)}})

    order = headjax.reconstruction_order(headjax.map_attention(model, loud), BATCHES)
    assert [head.layer for head in order[:4]] == [1] * 4


def test_a_layer_that_fits_the_examples_it_is_solved_on_does_not_look_harmless():
    """Layer 0 has more features than there are tokens, so that on these its other heads make up for any."""
    wide = tiny.model(tiny.decoder_config(tiny.layer(tiny.multi_head(head_dim=64)), tiny.layer()))
    order = headjax.reconstruction_order(wide, [tiny.tokens(1, 8, seed) for seed in range(4)])
    assert [head.layer for head in order[:4]] == [1] * 4


def test_logits_of_a_large_vocabulary_are_read_in_parts(monkeypatch):
    decoder = tiny.model(tiny.decoder_config())
    numbers = 8 * decoder.config.vocab_size
    order = headjax.reconstruction_order(decoder, BATCHES)
    monkeypatch.setattr(agreement, "LOGITS", 2 * numbers)
    assert headjax.reconstruction_order(decoder, BATCHES) == order
    parts = agreement.in_parts(decoder, BATCHES)
    assert [len(part["input_ids"]) for part in parts] == [2] * 4
    for name in BATCHES[0]:
        joined = np.concatenate([part[name] for part in parts])
        assert (joined == np.concatenate([batch[name] for batch in BATCHES])).all()
    assert agreement.in_parts(tiny.model(config(task=headjax.tasks.Classification(classes=2))), BATCHES) == BATCHES


def test_no_labels_are_read():
    fields = {
        "attention": tiny.multi_head(2),
        "num_layers": 2,
        "segments": 0,
        "task": headjax.tasks.Classification(classes=3),
    }
    classifier = tiny.model(config(hidden=24, **fields))
    tokens = [tiny.tokens(32, 8, seed) for seed in range(2)]
    labelled = [one | {"labels": np.full(32, 1)} for one in tokens]
    assert headjax.reconstruction_order(classifier, labelled) == headjax.reconstruction_order(classifier, tokens)


@pytest.mark.parametrize(("examples", "places"), [(64, [4, 12]), (32, [8]), (1, [8]), (10_000, list(range(16)))])
def test_layers_are_compared_on_batches_of_all_lengths(examples, places) -> None:
    batches = [{"input_ids": np.full((32, 8 + place), place)} for place in range(16)]
    assert [int(batch["input_ids"][0, 0]) for batch in batches_for(batches, examples)] == places
