"""Rank the heads of models whose necessary heads are known, by every score and order.

    python -m results.experiments.ground_truth     # writes results/measurements/ground_truth_heads.csv

A model is an induction circuit with weights by hand. The second half of a sequence repeats the first, and the next
token follows from two heads alone: one writes the token before it beside every token, the other attends to the place
after the same token's last occurrence and writes what stands there. All other heads are distractors with random
weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headjax.core import serialize
from headjax.core.class_names import IGNORED
from headjax.heads.head_id import HeadId
from headjax.heads.orders import LEARNED, ORDERS, OrderConfig, order_heads
from headjax.models.decoder import DecoderConfig
from headjax.models.model import Model
from headjax.nn import Kind, MultiHeadAttention
from headjax.nn.norms import Norm, Normalisation
from results.table import Row, write

TOKENS, LENGTH, LAYERS, HEADS, JUNK = 16, 24, 4, 8, 32
WIDTH = 2 * TOKENS + LENGTH + JUNK
SEEDS = 5
EXAMPLES = 128

TOKEN = slice(0, TOKENS)
BEFORE = slice(TOKENS, 2 * TOKENS)
POSITION = slice(2 * TOKENS, 2 * TOKENS + LENGTH)
UNREAD = slice(2 * TOKENS + LENGTH, WIDTH)


class Unchanged(Normalisation):
    """The module of `NoNorm`."""

    def __init__(self, config: Norm) -> None:
        self.config = config

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return inputs


@serialize.kind("no_norm")
@dataclasses.dataclass(frozen=True)
class NoNorm(Norm):
    """No normalisation: x + f(x), so that what a head writes stays where it is written."""

    @staticmethod
    def unit(x: jax.Array, epsilon: float) -> jax.Array:
        return x

    def module(self, width: int, axis: str | None = "embed") -> Unchanged:
        return Unchanged(self)


class Setting(NamedTuple):
    """A kind of model.

    Attributes:
        gain: logit that the circuit adds to the right token.
        noise: root mean square of the logits that a distractor adds.
        loud: root mean square of the numbers that a distractor writes where nothing reads them.
        sharp: difference of the attention logits between the right place and the others.
    """

    gain: float = 4.0
    noise: float = 0.02
    loud: float = 0.3
    sharp: float = 8.0


SETTINGS = {
    "quiet": Setting(),
    "loud": Setting(loud=10.0),
    "noisy": Setting(noise=0.05),
    "certain": Setting(gain=16.0),
    "saturated": Setting(sharp=30.0),
}
"""Distractors that hardly matter; that write much which nothing reads; that disturb; a circuit that is certain of its
answer; a circuit whose attention is saturated."""


def induction_model(setting: Setting, seed: int) -> tuple[Model, frozenset[HeadId]]:
    """Return a model and its two necessary heads, which lie in random places of layers 0 to 1 and 2 to 3."""
    generator = np.random.default_rng(seed)
    size = max(TOKENS, LENGTH)
    weights = {name: generator.standard_normal((LAYERS, WIDTH, HEADS, size)) for name in ("query", "key", "value")}
    output = np.zeros((LAYERS, HEADS, size, WIDTH))
    # Values of one-hot tokens and positions have variance 2 in every dimension.
    unit = 1.0 / np.sqrt(2.0 * size)
    output[..., TOKEN] = generator.standard_normal((LAYERS, HEADS, size, TOKENS)) * setting.noise * unit
    output[..., UNREAD] = generator.standard_normal((LAYERS, HEADS, size, JUNK)) * setting.loud * unit
    for array in weights.values():
        array[:, UNREAD] = 0.0
        array[:, BEFORE] = 0.0
    before = (int(generator.integers(0, 2)), int(generator.integers(0, HEADS)))
    after = (int(generator.integers(2, 4)), int(generator.integers(0, HEADS)))
    made = {place: {name: np.zeros((WIDTH, size)) for name in weights} for place in (before, after)}
    # The query at place i is the key of place i - 1.
    made[before]["query"][POSITION, :LENGTH] = setting.sharp * np.eye(LENGTH, k=-1)
    made[before]["key"][POSITION, :LENGTH] = np.eye(LENGTH)
    made[after]["query"][TOKEN, :TOKENS] = setting.sharp * np.eye(TOKENS)
    made[after]["key"][BEFORE, :TOKENS] = np.eye(TOKENS)
    for place, target, gain in ((before, BEFORE, 1.0), (after, TOKEN, setting.gain)):
        made[place]["value"][TOKEN, :TOKENS] = np.eye(TOKENS)
        for name, array in made[place].items():
            weights[name][place[0], :, place[1]] = array
        output[place] = 0.0
        output[place][:TOKENS, target] = gain * np.eye(TOKENS)
    attention = Kind(
        MultiHeadAttention, num_heads=HEADS, head_dim=size, projection_bias=False, output_bias=False, scale=1.0
    )
    config = DecoderConfig(
        vocab_size=TOKENS,
        max_length=LENGTH,
        width=WIDTH,
        num_layers=LAYERS,
        attention=(attention,) * LAYERS,
        hidden=(1,) * LAYERS,
        norm=NoNorm(),
    )
    embeddings = {"token": np.eye(TOKENS, WIDTH), "position": np.eye(LENGTH, WIDTH, k=POSITION.start)}
    silent = {"up": (WIDTH, 1), "up_bias": (1,), "down": (1, WIDTH), "down_bias": (WIDTH,)}
    layers = {
        "attention": {**weights, "output": {"kernel": output}},
        "attention_residual": {"norm": {}},
        "feed_forward": {name: np.zeros((LAYERS, *shape)) for name, shape in silent.items()},
        "feed_forward_residual": {"norm": {}},
    }
    stack = {f"layers_0_{LAYERS - 1}": layers, "final_norm": {}}
    params: Any = {"embeddings": embeddings, "decoder": stack, "output": {}}
    heads = frozenset(HeadId("decoder", *place) for place in (before, after))
    return Model(config, jax.tree.map(lambda array: jnp.asarray(array, jnp.float32), params)), heads


def repetitions(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return sequences whose second half repeats the first, of different tokens, with labels in the second half.

    The token that follows the very first one is not asked for, because nothing stands before that.
    """
    generator = np.random.default_rng(seed)
    half = LENGTH // 2
    first = np.stack([generator.permutation(TOKENS)[:half] for _ in range(count)]).astype(np.int32)
    tokens = np.concatenate([first, first], axis=1)
    labels = np.where(np.arange(LENGTH) > half + 1, tokens, IGNORED).astype(np.int32)
    return {"input_ids": tokens, "labels": labels}


def auroc(order: Sequence[HeadId], needed: frozenset[HeadId]) -> float:
    """Return the probability that a needed head is removed later than one that is not."""
    places = {head: place for place, head in enumerate(order)}
    pairs = [(places[one], places[other]) for one in needed for other in places if other not in needed]
    return float(np.mean([one > other for one, other in pairs]))


def measure(names: Sequence[str], kinds: Sequence[str] = tuple(SETTINGS), seeds: int = SEEDS) -> Iterator[Row]:
    """Yield the AUROC of every order on every model; learned gates see the first model of each setting alone."""
    for kind in kinds:
        for seed in range(seeds):
            model, needed = induction_model(SETTINGS[kind], seed)
            batches = [repetitions(EXAMPLES // 2, 100 + seed), repetitions(EXAMPLES // 2, 200 + seed)]
            for name in names:
                if seed and name in LEARNED:  # they train for a hundred times as long as a score takes
                    continue
                order = order_heads(model, batches, OrderConfig(by=name), count=LAYERS * HEADS - len(needed))
                yield Row(kind, str(seed), order=name, metric="auroc", value=auroc(order, needed))


if __name__ == "__main__":
    write("ground_truth_heads", measure(tuple(ORDERS)))
