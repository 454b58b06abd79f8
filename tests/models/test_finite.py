"""Attention to nothing and losses of nothing: results and gradients are finite in every formulation and kernel.

The layers of one model have every formulation, so that one program shows all of them, and the rows of one batch are
the cases. A number that is not finite anywhere would reach the loss or the gradients of the layers before.
"""

import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import headjax
from headjax.core.tensors import abstract
from headjax.heads import program
from headjax.nn.attend import KERNELS
from tests import tiny
from tests.models.mixed import decoder, encoder
from tests.models.test_encoder_decoder import t5, translation
from tests.nn.formulations import FORMULATIONS
from tests.tiny import flatten

LENGTH = 6
PRESENT = np.array(
    [
        [1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 0],  # a row that is masked from end to end
        [1, 0, 0, 0, 0, 0],  # a sequence of one token
        [0, 0, 0, 0, 0, 1],  # the same, whose causal queries before it see nothing
        [1, 1, 1, 1, 1, 1],  # no targets
        [1, 1, 1, 1, 1, 1],  # gates that mask every head
    ]
)
SILENT, GATED = 4, 5
TOKENS = np.random.default_rng(0).integers(0, tiny.VOCABULARY, PRESENT.shape)
LABELS = np.where(np.arange(len(TOKENS))[:, None] == SILENT, -100, TOKENS)
BATCH = {"input_ids": TOKENS, "attention_mask": PRESENT, "labels": LABELS}
NO_TARGETS = BATCH | {"labels": np.full_like(LABELS, -100)}
ONE_TOKEN = {name: array[:, :1] for name, array in BATCH.items()}

DTYPES = ("float32", "bfloat16")
HERE = [name for name, kernel in KERNELS.items() if jax.default_backend() in kernel.platforms]
"""The kernels of this machine."""


def computed_by(kernel: str, dtype: str) -> list[Any]:
    """The formulations that a kernel computes."""

    def can(attention: Any) -> bool:
        config = decoder([attention])
        call = headjax.models.ForwardOptions(compute=headjax.Compute(dtype=dtype, attention=kernel))
        try:
            jax.eval_shape(
                lambda params: headjax.Model(config, params).forward({"input_ids": TOKENS}, call),
                abstract(config.tensors()),
            )
        except headjax.KernelError:
            return False
        return True

    return [attention for attention in FORMULATIONS.values() if can(attention)]


def gated(model: Any) -> Any:
    """The model with gates of 1 for every example and head, and of 0 for all heads of the row `GATED`."""
    gates = {}
    for site in headjax.attention_sites(model):
        array = np.ones((*site.shape[:-1], len(TOKENS), 1, site.heads), np.float32)
        array[..., GATED, :, :] = 0.0
        gates[site.path] = array
    return program.gated(model, gates)


@functools.partial(jax.jit, static_argnums=2)
def step(model: Any, batch: Any, compute: headjax.Compute) -> Any:
    """Loss, outputs, losses of each example, and gradients with respect to parameters and gates."""

    def loss(model: Any) -> Any:
        output = model.forward(batch, headjax.models.ForwardOptions(compute=compute))
        found = model.losses(output, batch)
        return found.mean(), {"hidden": output.hidden, "logits": output.logits, "losses": found.total}

    graph, params, rest = nnx.split(model, nnx.Param, ...)
    differentiate = jax.value_and_grad(lambda params: loss(nnx.merge(graph, params, rest)), has_aux=True)
    (value, seen), slopes = differentiate(params)
    return {"loss": value, **seen, "gradients": nnx.to_pure_dict(slopes)}


def assert_finite(found: Any) -> None:
    wrong = [path for path, array in flatten(found).items() if not np.isfinite(np.asarray(array, np.float32)).all()]
    assert not wrong


def assert_survives(config: Any, compute: headjax.Compute, *batches: Any) -> None:
    """A training step is finite for these batches; without a target it has no loss and no gradient."""
    model = tiny.model(config)
    model = gated(model) if headjax.all_heads(config) else model
    for batch in batches or (BATCH, NO_TARGETS):
        found = step(model, batch, compute)
        assert_finite(found)
        if batch is NO_TARGETS:
            assert float(found["loss"]) == 0.0
            assert not any(np.asarray(slope).any() for slope in flatten(found["gradients"]).values())
        elif batch is BATCH:
            assert float(found["loss"]) > 0.0
            assert float(found["losses"][SILENT]) == 0.0


def cases(first: Any, *values: Any, further: Any = pytest.mark.whole) -> list[Any]:
    """Every combination of values, of which those in `first` run with the quick tests; a mark of the others."""
    every = itertools.product(*values)
    return [pytest.param(*case, marks=() if case in first else further) for case in every]


ATTACK = pytest.mark.attack
FIRST = {("einsum", "float32"), ("xla", "bfloat16"), ("collaborative_pallas", "bfloat16")}


@pytest.mark.parametrize(("kernel", "dtype"), cases(FIRST, HERE, DTYPES, further=ATTACK))
def test_a_decoder_of_every_formulation(kernel, dtype):
    attentions = computed_by(kernel, dtype)
    if dtype in KERNELS[kernel].dtypes:
        assert attentions
        assert_survives(decoder(attentions), headjax.Compute(dtype=dtype, attention=kernel))


SMALL = {
    "encoder": lambda: encoder([tiny.multi_head(), tiny.collaborative()]),
    "decoder": lambda: decoder([tiny.multi_head(), tiny.collaborative()]),
    "translation": lambda: translation(num_layers=1),
    "t5": lambda: t5(num_layers=1),
}


@pytest.mark.parametrize("name", cases({("encoder",), ("t5",)}, SMALL))
def test_every_architecture_with_few_layers(name):
    """In bfloat16, whose numbers are the coarser ones; T5 adds its bias to masked logits."""
    assert_survives(SMALL[name](), headjax.Compute(dtype="bfloat16"))


@pytest.mark.parametrize("name", cases({("encoder",), ("decoder",)}, SMALL))
def test_models_without_heads(name):
    model = tiny.model(SMALL[name]())
    bare = headjax.prune(model, headjax.all_heads(model.config))
    assert all(
        layer.of is headjax.nn.NoHeadsAttention for layers in bare.config.attentions().values() for layer in layers
    )
    assert_survives(bare.config, headjax.Compute(dtype="bfloat16"))


@pytest.mark.parametrize("name", cases({("decoder",)}, ["decoder", "translation"]))
def test_samplers_and_beams_from_nothing(name):
    model = tiny.model(SMALL[name]())
    prompts = {name: BATCH[name][:4] for name in ("input_ids", "attention_mask")}
    drawn = headjax.generate(
        model, prompts, max_new_tokens=2, sampler=headjax.Sample(top_k=3, top_p=1e-9, temperature=1e-9)
    )
    found = headjax.beam_search(model, prompts, beams=3, max_new_tokens=2, end_token=1)
    assert_finite({"log_probability": drawn.log_probability, "scores": found.scores})


@pytest.mark.parametrize("name", cases({("translation",)}, SMALL))
def test_scores_of_heads_that_attend_to_nothing(name):
    """The mean over no query is 0, not 0 / 0: a source of padding alone has none."""
    model = tiny.model(SMALL[name]())
    nothing = BATCH | {"attention_mask": np.zeros_like(PRESENT)}
    for batch in (BATCH, nothing) if name in ("translation", "t5") else (BATCH,):
        scores = headjax.score_heads(model, [batch])
        assert_finite(
            {f"{score} {head}": value for score in scores.values for head, value in scores.score(score).items()}
        )
