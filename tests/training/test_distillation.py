from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

import headjax
from headjax.training.distillation import TEACHER, distillation_objective
from tests import tiny
from tests.closeness import assert_close, assert_trees_equal, close_to
from tests.training.runs import after, config, run, terminate, walk

FAST = headjax.AdamW(schedule=headjax.ConstantRate(peak=3e-3))
SETTINGS = headjax.Distillation(steps=40, optimizer=FAST, task=0.0, logits=1.0, hidden=0.1, temperature=1.0)

REMOVED = ["decoder/0/1", "decoder/0/2", "decoder/1/0"]


@pytest.fixture(scope="module")
def teacher():
    return tiny.model(tiny.decoder_config())


@pytest.fixture(scope="module")
def student(teacher):
    return headjax.prune(teacher, REMOVED)


@pytest.fixture(scope="module")
def batches():
    return [tiny.tokens(8, 10, seed) for seed in range(4)]


def difference(student, teacher, batches):
    """Mean squared difference of the logits."""
    return np.mean([np.square(student(batch).logits - teacher(batch).logits) for batch in batches])


@pytest.fixture(scope="module")
def recovered(student, teacher, batches):
    """A whole run, and the steps done when a loss was fetched."""
    done = []
    with pytest.MonkeyPatch.context() as patch:
        fetched = tiny.fetches(patch, lambda: len(done))
        found = headjax.distill(
            student, teacher, itertools.cycle(batches), SETTINGS, progress=lambda number, values: done.append(number)
        )
    return found, fetched


@pytest.mark.whole
def test_a_pruned_model_comes_back_to_its_teacher(recovered, student, teacher, batches):
    """And the host waits for the device only when losses are due."""
    found, fetched = recovered
    assert fetched
    assert fetched <= {0, 19, 39, 40}, "steps done when a loss was fetched"
    assert found.losses.shape == (40,)
    assert difference(found.model, teacher, batches) < 0.5 * difference(student, teacher, batches)
    assert found.model.config == student.config
    assert found.model.history[-1]["action"] == "distill"
    assert found.model.history[-1]["logits"] == 1.0
    assert_trees_equal(
        student.params, headjax.prune(teacher, REMOVED).params
    )  # the student that was given is still itself


def test_a_training_run_with_a_teacher_goes_on_bit_for_bit(tmp_path):
    data, taught = walk(), {"teacher": tiny.model(config().architecture())}
    whole = run(tmp_path / "whole", data, options=taught)
    assert not run(tmp_path / "run", data, options=taught | after(3, terminate)).finished
    with pytest.raises(headjax.CheckpointError, match="another teacher"):
        run(tmp_path / "run", data)
    assert_trees_equal(run(tmp_path / "run", data, options=taught).model.params, whole.model.params)
    assert whole.model.history[-1]["action"] == "distill"
    with pytest.raises(headjax.ConfigError, match=r"^config\.accumulate: must be 1"):
        run(tmp_path / "parts", data, options=taught, accumulate=2)


@pytest.mark.whole
def test_a_mesh_computes_the_same(student, teacher, batches):
    repeated = list(itertools.islice(itertools.cycle(batches), SETTINGS.steps))
    one = headjax.distill(student, teacher, repeated, SETTINGS).losses
    spread = headjax.distill(student, teacher, repeated, SETTINGS, mesh=headjax.MeshConfig(data=8).build()).losses
    assert_close(spread[:5], one[:5], sums=5 * 2 * tiny.SUMS)
    np.testing.assert_allclose(spread, one, rtol=0.05)


def test_without_a_teacher_it_is_fine_tuning(student, batches):
    alone = headjax.distill(
        student, None, batches, headjax.Distillation(steps=2, optimizer=FAST, logits=9.0, hidden=9.0)
    )
    loss = student.losses(student(batches[0]), batches[0]).mean()
    assert alone.losses[0] == close_to(float(loss), sums=tiny.SUMS)


def encoder(task):
    return headjax.EncoderConfig(
        attention=tiny.multi_head(), hidden=8, vocab_size=9, max_length=8, width=8, num_layers=1, task=task
    )


def outputs(generator, logits, **extra):
    hidden = generator.standard_normal((2, 3, 8)).astype(np.float32)
    return headjax.models.Output(
        jnp.asarray(hidden), None if logits is None else jnp.asarray(logits), extra_logits=extra or None
    )


def terms(config, given, taught, batch, settings):
    """The terms of the objective and its value."""
    objective = distillation_objective(config, settings)
    losses = objective.losses(given, batch | {TEACHER: taught})
    return losses, sum(w * each.mean() for w, each in zip(objective.weights, losses, strict=True))


def kl(own, other, temperature):
    """T^2 KL(other || own) along the last axis."""
    own, other = log_softmax(own / temperature, axis=-1), log_softmax(other / temperature, axis=-1)
    return temperature**2 * (np.exp(other) * (other - own)).sum(axis=-1)


def test_the_loss_of_a_classifier_by_hand():
    """The second example is a filler: only the first counts, and of it only the tokens before the padding."""
    generator = np.random.default_rng(0)
    config = encoder(headjax.tasks.Classification(classes=3))
    own, other = generator.standard_normal((2, 2, 3)).astype(np.float32)
    given, taught = outputs(generator, own), outputs(generator, other)
    mask = np.array([[1, 1, 0], [0, 0, 0]])
    batch = {"labels": np.array([1, -100]), "attention_mask": jnp.asarray(mask)}
    settings = headjax.Distillation(steps=1, task=2.0, logits=3.0, hidden=5.0, temperature=1.7)
    losses, total = terms(config, given, taught, batch, settings)
    squares = np.square(given.hidden - taught.hidden)[0, :2].mean()
    expected = -2.0 * log_softmax(own[0])[1] + 3.0 * kl(own[0], other[0], 1.7) + 5.0 * squares
    assert float(total) == close_to(expected, sums=32)
    assert losses[0].weight.tolist() == [1.0, 0.0]


def test_spans_compare_both_ends_and_numbers_their_difference():
    generator = np.random.default_rng(1)
    own, other = generator.standard_normal((2, 2, 3, 2)).astype(np.float32)
    pair = [outputs(generator, a, start_logits=jnp.asarray(a[..., 0]), end_logits=jnp.asarray(a[..., 1]))
            for a in (own, other)]  # fmt: skip
    positions = {"start_positions": np.array([0, 1]), "end_positions": np.array([1, 2])}
    settings = headjax.Distillation(steps=1, task=0.0, temperature=1.0)
    _, total = terms(encoder(headjax.tasks.Span()), *pair, positions, settings)
    ends = [kl(own[..., end], other[..., end], 1.0).mean() for end in (0, 1)]
    assert float(total) == close_to(np.mean(ends), sums=32)
    numbers = [outputs(generator, np.array([[1.0], [2.0]])), outputs(generator, np.array([[3.0], [5.0]]))]
    _, total = terms(encoder(headjax.tasks.Regression()), *numbers, {"labels": np.array([0.0, np.nan])}, settings)
    assert float(total) == close_to(4.0, sums=2)


def test_sentences_without_labels_learn_the_teachers_vectors_and_labelled_pairs_its_similarity():
    """The last pair is a filler without tokens. A teacher of another size teaches similarities alone."""
    generator, mask = np.random.default_rng(2), np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]])
    own, other = generator.standard_normal((2, 4, 2, 5)).astype(np.float32)
    batch = {"labels": np.array([np.nan, 0.25, np.nan, np.nan], np.float32), "attention_mask": mask}
    given, taught, larger = (
        headjax.models.Output(jnp.zeros((4, 3, 8)), jnp.asarray(vectors[:, 0, 0]), embeddings=jnp.asarray(vectors))
        for vectors in (own, other, np.concatenate([other, other], axis=-1))
    )
    config, settings = encoder(headjax.tasks.SentenceSimilarity()), headjax.Distillation(steps=1, task=0.0)
    distances = np.square(own - other).sum(axis=-1).mean(axis=-1)
    differences = np.square(own - other)[:, 0, 0]
    for teacher, expected in ((taught, [distances[0], differences[1], distances[2]]), (larger, differences[:3])):
        losses, total = terms(config, given, teacher, batch, settings)
        assert float(total) == close_to(np.mean(expected), sums=64)
        assert losses[0].weight.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_requests_that_cannot_be_met_are_errors(student, teacher, batches):
    other = tiny.model(encoder(headjax.tasks.Classification(classes=3)))
    small = [{"input_ids": batches[0]["input_ids"][:, :8] % 9}]
    for taught_by, given, settings, error, message in (
        (teacher, [], headjax.Distillation(steps=1), headjax.DataError, "there is no example"),
        (teacher, batches[:3], SETTINGS, headjax.DataError, "they end after 3 of 40 steps"),
        (
            other,
            small,
            headjax.Distillation(steps=1),
            headjax.HeadjaxError,
            r"its logits are \[8, 3\], the student's \[8, 8, 50\]",
        ),
    ):
        with pytest.raises(error, match=message):
            headjax.distill(student, taught_by, given, settings)
