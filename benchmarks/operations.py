"""Operations that `python -m benchmarks scaling` measures: a call, the FLOPs it is counted to take, its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import generate
from headjax.conversion import convert
from headjax.conversion.collaborative import Solver, ToCollaborative, fit_layers
from headjax.conversion.target import Products
from headjax.core.tensors import Constant, Zeros, map_tensors
from headjax.heads.ablation import ablate, ablations_at_once
from headjax.heads.program import measure, prepare
from headjax.heads.scoring import batch_sums, score_heads
from headjax.heads.site import ones
from headjax.mesh.distributed import put_batch
from headjax.mesh.mesh import MeshConfig
from headjax.models import generation
from headjax.models.decoder import DecoderConfig
from headjax.models.decoding import continue_until, read_prompts
from headjax.models.inputs import device_batch
from headjax.models.model import Model
from headjax.nn import Kind, MultiHeadAttention
from headjax.nn.block import Compute
from headjax.training.config import AdamW, LinearDecay
from headjax.training.step import Trainer

NEW = 16
"""Tokens that a prompt is continued by; a decode step is one of them."""
SWEEPS = 20
"""Rounds of alternating least squares of a conversion, always as many, so that its work is the same in every run."""


class Shape(NamedTuple):
    """The measured model and its batch; the last four are the factors, heads of each layer among them.

    Width and head size stay while heads are added. The length is that of a prompt in generation.
    """

    width: int = 128
    hidden: int = 512
    head_dim: int = 32
    vocabulary: int = 256
    length: int = 128
    depth: int = 6
    heads: int = 4
    batch: int = 1


class Operation(NamedTuple):
    """An operation on a model and a batch of one shape.

    Attributes:
        call: does it once.
        flops: FLOPs of its matrix products, by headjax's own counts.
        memory: bytes of its largest compiled program, arguments and temporaries.
        before: what a call needs to have done, which is not timed.
        steps: number of equal steps of a call, each of which takes `flops`.
    """

    call: Callable[[], Any]
    flops: float
    memory: int
    before: Callable[[], Any] | None = None
    steps: int = 1


def language_model(shape: Shape) -> DecoderConfig:
    """Return the config of a decoder, none of whose weights depends on the length."""
    return DecoderConfig(
        vocab_size=shape.vocabulary,
        max_length=None,
        width=shape.width,
        num_layers=shape.depth,
        attention=(Kind(MultiHeadAttention, num_heads=shape.heads, head_dim=shape.head_dim),) * shape.depth,
        hidden=(shape.hidden,) * shape.depth,
        positions="none",
    )


def drawn(config: DecoderConfig) -> Model:
    """Return the model with random weights, drawn by NumPy, because nothing has to be compiled for that."""
    generator = np.random.default_rng(0)

    def draw(path: str, tensor: nnx.Param) -> jax.Array:
        if isinstance(tensor.init, Zeros | Constant):
            return jnp.full(tensor.shape, getattr(tensor.init, "value", 0.0), jnp.float32)
        return jnp.asarray(0.02 * generator.standard_normal(tensor.shape), jnp.float32)

    return Model(config, map_tensors(draw, config.tensors()))


def tokens(shape: Shape) -> dict[str, np.ndarray]:
    """Return a batch of random tokens."""
    generator = np.random.default_rng(0)
    return {"input_ids": generator.integers(1, shape.vocabulary, (shape.batch, shape.length), dtype=np.int32)}


def held_bytes(compiled: Any) -> int:
    """Return the bytes of a compiled program's arguments and temporaries."""
    memory = compiled.memory_analysis()
    return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes)


def training(shape: Shape) -> Operation:
    """One step of AdamW."""
    config, mesh = language_model(shape), MeshConfig(data=1).build(jax.devices()[:1])
    optimizer = AdamW(schedule=LinearDecay(peak=1e-4, warmup_steps=10)).build(config.tensors(), 100)
    trainer = Trainer(config, optimizer, mesh)
    batch = put_batch(tokens(shape), mesh)
    state = trainer.abstract_state()
    compiled = trainer.lower(state, batch).compile()
    start = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)._replace(params=drawn(config).params)
    held = {"state": jax.device_put(start, jax.tree.map(lambda leaf: leaf.sharding, state))}

    def call() -> Any:
        held["state"], metrics = compiled(held["state"], batch, trainer.number)
        return held["state"], metrics

    return Operation(call, training_flops(config, shape), held_bytes(compiled))


def training_flops(config: DecoderConfig, shape: Shape) -> float:
    """Count a forward pass, and a backward pass of twice its FLOPs; updates count nothing."""
    return 3.0 * shape.batch * config.flops(shape.length)


def scoring(shape: Shape) -> Operation:
    """Importance of all heads."""
    config, batch = language_model(shape), tokens(shape)
    model = drawn(config)
    program, state = prepare(model, None)
    lowered = batch_sums.lower(program, (), state, ones(program.sites), program.read(batch))
    return Operation(
        lambda: score_heads(model, [batch], statistics=()).values,
        scoring_flops(config, shape),
        held_bytes(lowered.compile()),
    )


def scoring_flops(config: DecoderConfig, shape: Shape) -> float:
    """Count a forward pass, and a backward pass in activations alone.

    There a product with weights takes one product; queries with keys and probabilities with values take two each.
    """
    pairs = sum(pair_flops(attention, config.width, shape.length) for attention in config.attention)
    return float(shape.batch * (2 * config.flops(shape.length) + pairs))


def pair_flops(attention: Kind, width: int, length: int) -> int:
    """Return the part of an attention's count that grows with queries times keys."""
    count = attention.module(width, width).flops
    return count(length, length) - count(length, 0) - count(0, length)


def sweeping(shape: Shape) -> Operation:
    """Every head ablated alone; its memory is that of the whole model's pass."""
    config, batch = language_model(shape), tokens(shape)
    model = drawn(config)
    program, state = prepare(model, None)
    lowered = measure.lower(program, state, ones(program.sites), program.read(batch))
    return Operation(
        lambda: ablate(model, [batch]).ablated, sweeping_flops(config, shape), held_bytes(lowered.compile())
    )


def sweeping_flops(config: DecoderConfig, shape: Shape) -> float:
    """Count a forward pass and the walk beside it, then for every head the layers from its own on and the logits.

    The attention of a head's own layer is computed once for the heads that are ablated together.
    """
    length, layers = shape.length, config.stacks()["decoder"].layers
    whole = [layer.flops(length) for layer in layers]
    attention = [layer.attention.module(config.width, config.width).flops(length, length) for layer in layers]
    logits = config.flops(length) - sum(whole)
    total, size = 2 * config.flops(length), ablations_at_once(shape.heads)
    for layer in range(len(layers)):
        one = attention[layer] + size * (sum(whole[layer:]) - attention[layer] + logits)
        total += -(-shape.heads // size) * one
    return float(shape.batch * total)


def conversion(shape: Shape) -> Operation:
    """Multi-head to collaborative attention at half of the size, without calibration: it reads weights alone."""
    model, rank = drawn(language_model(shape)), shape.heads * shape.head_dim // 2
    solver = Solver(sweeps=SWEEPS, tolerance=0.0)
    target = ToCollaborative(shared_dim=rank, solver=solver)
    factor: Any = jax.ShapeDtypeStruct((shape.depth, shape.width, shape.heads, shape.head_dim), np.float32)
    program = fit_layers.lower(Products(factor, factor), rank, solver)
    return Operation(
        lambda: convert(model, target).model.params, conversion_flops(shape), held_bytes(program.compile())
    )


def conversion_flops(shape: Shape) -> float:
    """Count `SWEEPS` rounds of alternating least squares in every layer; start and errors count nothing."""
    size = shape.heads * shape.head_dim
    one = least_squares_flops(min(shape.width, size), shape.heads, shape.head_dim, size // 2)
    return shape.depth * SWEEPS * one


def least_squares_flops(rows: int, heads: int, dim: int, rank: int) -> float:
    """Count one round of `headjax.conversion.collaborative.sweep`.

    Five products with the heads' own factors; Gram matrices and corrections of P and S, `[rows, rank]`, and of M,
    `[heads, rank]`; and three Cholesky factors of rank^3 / 3 with their inverses of rank^3.
    """
    products = 5 * 2 * rows * heads * dim * rank
    corrections = (3 * rows + 2 * heads) * 2 * rank**2 + (2 * rows + heads) * 6 * rank**2
    return products + corrections + 4.0 * rank**3


def prefill(shape: Shape) -> Operation:
    """Read the prompts and choose the first token of each continuation."""
    begun = _generation(shape)
    return Operation(begun.begin, float(shape.batch * begun.cost.prompt), held_bytes(begun.prompt))


def decoding(shape: Shape) -> Operation:
    """One token more of every continuation, after prompts of the length; the mean of `NEW` steps."""
    made, begun = _generation(shape), list[generation.Generation]()
    return Operation(
        lambda: begun.pop().advance(),
        float(made.cost.step.flops),
        held_bytes(made.continuation),
        lambda: begun.append(made.begin()),
        NEW,
    )


def generation_cost(config: DecoderConfig, shape: Shape) -> generate.Cost:
    """Count the FLOPs of one prompt and of one step with the cache full."""
    asked = generate.Shape(prompt=shape.length, new=NEW + 1, vocabulary=shape.vocabulary)
    return generate.Cost.of(config, asked, Compute(), shape.batch)


class Begun(NamedTuple):
    """A generation as the benchmarks take it apart: its start, the bytes of its two programs, and what it costs."""

    begin: Callable[[], generation.Generation]
    prompt: Any
    continuation: Any
    cost: generate.Cost


def _generation(shape: Shape) -> Begun:
    """Return the start of a generation, its compiled programs, and what it costs."""
    config, batch = language_model(shape), tokens(shape)
    model = drawn(config).unstacked()

    def begin() -> generation.Generation:
        run = generation.begin(model, batch, max_new_tokens=NEW + 1)
        jax.block_until_ready(run.loop.tokens)
        return run

    run, arrays = begin(), device_batch(config, batch)
    prompt = read_prompts.lower(run.settings, run.model, arrays, run.key).compile()
    continuation = continue_until.lower(run.settings, run.model, run.key, run.loop, 1).compile()
    return Begun(begin, prompt, continuation, generation_cost(config, shape))


OPERATIONS: Mapping[str, Callable[[Shape], Operation]] = {
    "train step": training,
    "importance": scoring,
    "ablation": sweeping,
    "conversion": conversion,
    "prefill": prefill,
    "decode step": decoding,
}
"""Operations by name."""
