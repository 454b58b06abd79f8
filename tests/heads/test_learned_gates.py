import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.heads.learned_gates import relaxed_top_k
from tests import tiny
from tests.closeness import assert_close, close_to

USEFUL = {headjax.HeadId("decoder", 0, 1), headjax.HeadId("decoder", 0, 3), headjax.HeadId("decoder", 1, 0)}


def test_hard_concrete_opens_as_often_as_its_penalty_says():
    gate, logits = headjax.HardConcrete(weight=0.5), {"encoder": jnp.array([[-1.0, 0.0, 2.0]])}
    keys = jax.random.split(jax.random.key(0), 20_000)
    samples = jax.vmap(lambda key: gate.sample(logits, key, jnp.float32(0))["encoder"])(keys)
    one = lambda logit: gate.penalty({"encoder": jnp.array([logit])}) / gate.weight  # noqa: E731
    expected = np.array([[one(-1.0), one(0.0), one(2.0)]])
    np.testing.assert_allclose((samples > 0).mean(axis=0), expected, atol=0.015)
    assert float(gate.penalty(logits)) == close_to(0.5 * float(expected.sum()), sums=3)
    shares = [(samples == value).mean() for value in (0.0, 1.0)]
    assert min(shares) > 0.1
    np.testing.assert_allclose(gate.final({"encoder": jnp.array([[-9.0, 0.0, 9.0]])})["encoder"], [[0.0, 0.5, 1.0]])


def test_subset_gates_sum_to_the_count_at_every_temperature():
    r = jax.random.normal(jax.random.key(0), (12,)).at[7].set(-jnp.inf)
    for temperature in (1000.0, 1.0, 0.1, 1e-8):
        gates = relaxed_top_k(r, 5, temperature)
        assert float(gates.sum()) == close_to(5.0, sums=12)
        assert float(gates[7]) == 0.0
    top = np.zeros(12)
    top[np.argsort(-np.asarray(r))[:5]] = 1.0
    assert_close(relaxed_top_k(r, 5, 1e-8), top, sums=12)
    assert_close(relaxed_top_k(r, 11, 1e-3), np.isfinite(r).astype(float), sums=12)


@pytest.fixture(scope="module")
def task():
    """A model five of whose heads add nothing, and batches on which it is right."""
    ragged = [tiny.layer(tiny.multi_head(4)), tiny.layer(tiny.multi_head(2)), tiny.layer(tiny.multi_head(2))]

    def silence(found):
        kept = [float(headjax.HeadId(found.stack, found.layer, h) in USEFUL) for h in range(found.config.num_heads)]
        kernel = 3.0 * found.params["output"]["kernel"] * np.array(kept)[:, None, None]
        return found.holding({"output": {"kernel": kernel}})

    model = headjax.map_attention(tiny.model(tiny.decoder_config(*ragged)), silence)
    given = tiny.tokens(8, 8)
    answers = np.asarray(model(given).logits).argmax(axis=-1)
    labels = np.concatenate([given["input_ids"][:, :1], answers[:, :-1]], axis=1)
    return model, [given | {"labels": labels.astype(np.int32)}]


@pytest.mark.whole
def test_subset_finds_the_heads_that_matter(task, compiled):
    learned = headjax.learn_gates(*task, headjax.Subset(count=3, start=5.0, end=0.1), steps=60, learning_rate=0.3)
    kept = {head for head, value in learned.logits.items() if head not in learned.removed}
    assert kept == USEFUL
    assert len(learned.removed) == 5
    assert learned.losses.shape == (60,)
    assert compiled.count("_step") == 1


@pytest.mark.whole
def test_hard_concrete_closes_what_costs_nothing(task, monkeypatch):
    """And the host waits for the device only when losses are due."""
    seen = []
    fetched = tiny.fetches(monkeypatch, lambda: len(seen))
    learned = headjax.learn_gates(
        *task,
        headjax.HardConcrete(weight=0.02),
        steps=120,
        learning_rate=0.2,
        progress=lambda n, values: seen.append(values),
    )
    assert fetched
    assert fetched <= {0, *range(19, 120, 20), 120}, "steps done when a loss was fetched"
    assert set(learned.removed) == set(learned.logits) - USEFUL
    assert len(seen) == 120
    assert [seen[number - 1]["loss"] for number in (1, 20, 100, 120)] == learned.losses[[0, 19, 99, 119]].tolist()
