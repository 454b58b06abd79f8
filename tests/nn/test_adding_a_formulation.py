"""The formulation of docs/how_to/formulation.md, which the package does not know, through all of a model's life."""

import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import headjax
from tests import tiny
from tests.closeness import assert_close

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "formulation.md"
BATCH = tiny.tokens(4, 8)
GONE = [headjax.HeadId("decoder", 0, 1), headjax.HeadId("decoder", 1, 3)]


@pytest.fixture(scope="module", autouse=True)
def tempered():
    """The page's class, in a module of the name that `tests/docs/test_pages.py` gives it: a kind is of one module."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    module = type(sys)("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "page", module)
        exec(code, vars(module))
        yield module.TemperedAttention


@pytest.fixture(scope="module")
def model(tempered):
    attention = headjax.Kind(tempered, num_heads=4, head_dim=4)
    return tiny.model(tiny.decoder_config(*(tiny.layer(attention),) * 2))


def test_it_is_causal_and_scored(model):
    changed = {name: array.copy() for name, array in BATCH.items()}
    changed["input_ids"][:, 5:] = 1
    before, after = model(BATCH).logits, model(changed).logits
    assert_close(after[:, :5], before[:, :5], sums=500)
    assert float(jnp.abs(after[:, 5:] - before[:, 5:]).max()) > 1e-3
    scores = headjax.score_heads(model, [BATCH]).values["importance"]
    assert len(scores) == 8
    assert all(score > 0 for score in scores.values())


def test_it_trains(model):
    trained = model.replace()
    optimizer = nnx.Optimizer(trained, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        value, slopes = nnx.value_and_grad(lambda model: model.losses(model(BATCH), BATCH).mean())(model)
        optimizer.update(model, slopes)
        return value

    losses = [float(step(trained, optimizer)) for _ in range(4)]
    assert losses[3] < losses[0]
    first = trained.params["decoder"]["layers_0_1"]["attention"]["temperature"]
    assert float(jnp.abs(first - model.params["decoder"]["layers_0_1"]["attention"]["temperature"]).max()) > 1e-3


def test_removing_a_head_is_closing_its_gate_also_after_saving(model, tmp_path):
    pruned = headjax.prune(model, GONE)
    assert pruned.config.attentions()["decoder"][0].ids == (0, 2, 3)
    masked = headjax.gated(model, dict.fromkeys(GONE, 0.0))(BATCH).logits
    assert_close(pruned(BATCH).logits, masked, sums=500)
    pruned.save(tmp_path / "model")
    loaded = headjax.load(tmp_path / "model")
    assert loaded.config == pruned.config
    np.testing.assert_array_equal(loaded(BATCH).logits, pruned(BATCH).logits)


def test_what_is_left_is_reconstructed(model):
    pruned, repaired = headjax.prune(model, GONE), headjax.reconstruct(model, [BATCH], GONE).model
    whole = model(BATCH).logits
    apart = [float(jnp.square(each(BATCH).logits - whole).mean()) for each in (pruned, repaired)]
    assert apart[1] < apart[0]


def test_it_works_in_a_flax_model(tempered):
    layer = tempered(16, num_heads=2, head_dim=4, rngs=nnx.Rngs(0))
    inputs = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    assert layer(inputs, mask=headjax.nn.Mask(causal=True)).shape == (2, 5, 16)
    assert layer.temperature[...].shape == (2,)
