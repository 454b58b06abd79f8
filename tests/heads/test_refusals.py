"""What functions of heads refuse: each call, and what its one line says."""

import jax
import numpy as np
import pytest
from flax import nnx

import headjax
from headjax.core.class_names import IGNORED
from headjax.evaluation.paired import paired_bootstrap
from headjax.heads.ablation import Ablation
from headjax.heads.batches import sum_over
from headjax.heads.discovery import find_sites
from headjax.heads.ordering import requested_count, uniform_steps
from headjax.heads.scoring import Scores
from headjax.heads.surgery import prune_units
from tests import tiny

CONFIG = tiny.decoder_config(
    tiny.layer(), tiny.layer(tiny.multi_head(2, head_ids=(0, 3))), tiny.layer(headjax.Kind(headjax.nn.NoHeadsAttention))
)
MODEL = tiny.model(CONFIG)
HEADS = headjax.all_heads(CONFIG)
FLAX = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
TWO = tiny.model(tiny.decoder_config())
EIGHT = headjax.all_heads(TWO.config)
ONE = EIGHT[:1]
BATCH = tiny.tokens(2, 8)
PADDING = BATCH | {"attention_mask": np.zeros((2, 8), int)}
IGNORING = BATCH | {"labels": np.full((2, 8), IGNORED)}
VALUES = dict.fromkeys(HEADS, 1.0)
SCORES = Scores({"importance": VALUES, "entropy": VALUES}, loss=1.0, examples=1, seconds=0.0)


def ablation(mode: str = "all-but-one") -> Ablation:
    zeros = {"loss": np.zeros(3)}
    return Ablation(mode, HEADS, zeros, {"loss": np.zeros((len(HEADS), 3))}, {"loss": np.ones(3)})


def grouped(num_heads: int = 4, kv_heads: int = 2, **fields):
    return tiny.layer(tiny.grouped(num_heads, kv_heads, 4, **fields))


def uniform(*layers):
    config = tiny.decoder_config(*layers)
    return uniform_steps(headjax.attention_sites(tiny.model(config)), config, headjax.all_heads(config))


def nan(*path: str):
    """The model with NaN in a group of its parameters."""

    def spoiled(tree, path):
        if path:
            return tree | {path[0]: spoiled(tree[path[0]], path[1:])}
        return jax.tree.map(lambda array: array * np.nan, tree)

    return TWO.replace(params=spoiled(TWO.params, path))


NO_EXAMPLE = "^batches: there is no example"
REFUSED = {
    headjax.ConfigError: [
        (lambda: headjax.Subset(count=0), "count: must be an integer of at least 1"),
        (lambda: headjax.prune(MODEL, "decoder/0/0"), "heads: expected a list of heads"),
        (lambda: headjax.prune(MODEL, HEADS, share="50%"), "share: must be from 0 to 1, got '50%'"),
        (
            lambda: headjax.Kind("multi_head", num_heads=4),
            "^of: must be a class, such as headjax.MultiHeadAttention, got 'multi",
        ),
        (lambda: headjax.OrderConfig(by="fishr"), r"^by: .* did you mean 'fisher'\?$"),
    ],
    headjax.DataError: [
        (lambda: headjax.reconstruct(TWO, [], ONE), "no example to calibrate on"),
        (lambda: headjax.reconstruct(TWO, [PADDING], ONE), "the examples hold padding alone"),
        (lambda: headjax.reconstruct(TWO, [tiny.tokens(1, 8)], ONE), "one example is too few"),
        (lambda: headjax.score_heads(TWO, [IGNORING]), "no example with a target"),
        (lambda: paired_bootstrap(np.zeros(1), np.zeros(1)), "1 examples are too few"),
        (lambda: sum_over([]), NO_EXAMPLE),
        (lambda: headjax.learn_gates(TWO, iter([]), headjax.Subset(count=4), steps=1, learning_rate=0.1), NO_EXAMPLE),
        (lambda: headjax.score_heads(TWO, BATCH), "batches: expected a list of batches, .* got str"),
        (
            lambda: headjax.score_heads(FLAX, BATCH, loss=lambda model, batch: 0.0),
            "batches: expected a list of batches",
        ),
    ],
    headjax.HeadjaxError: [
        (lambda: headjax.ablate(TWO, [BATCH], "all"), "unknown mode 'all'"),
        (lambda: ablation().effects("los"), "did you mean 'loss'"),
        (lambda: headjax.gated(MODEL, {"decoder/1/1": 0.0}), "decoder/1/1: the model has no such head"),
        (lambda: headjax.gated(MODEL, {"decoder": np.ones((3, 4))}), "gates: the model has no attention layer decoder"),
        (lambda: headjax.score_heads(TWO, [BATCH], gates={"decoder.layers_0_1.attention": 0.0}), r"expected \[2, 4\]"),
        (lambda: uniform(grouped(), grouped(4, 4)), "groups of 2, 2 heads; decoder/1 has groups of 1, 1, 1, 1"),
        (lambda: uniform(tiny.layer(tiny.multi_head(3)), tiny.layer()), "decoder/0 has groups of 1, 1, 1 heads"),
        (
            lambda: headjax.learn_gates(TWO, [BATCH], headjax.Subset(count=9), steps=1, learning_rate=0.1),
            "count: 9 heads to keep",
        ),
        (
            lambda: headjax.learn_gates(
                TWO, [BATCH], headjax.HardConcrete(weight=1.0), steps=1, learning_rate=0.1, stacks=["cross"]
            ),
            "no head stack 'cross'",
        ),
        (lambda: headjax.gated(MODEL, ["decoder/0/0"]), "gates: expected numbers by head, .* got list"),
        (lambda: headjax.score_heads(TWO, [BATCH], loss=lambda model, batch: (0.0, {})), "loss: expected .* got tuple"),
        (lambda: find_sites(nnx.Dict({"a.b": FLAX})), "^a.b: dots separate names in a path"),
        (lambda: headjax.replace_attention(FLAX, lambda layer: None), "to: .* returned NoneType"),
        (lambda: SCORES.score("importanse"), "'importanse'"),
        (
            lambda: headjax.order_heads(MODEL, [BATCH], headjax.OrderConfig(by="random", stacks=("cross",))),
            "no head stack 'cross'",
        ),
        (lambda: requested_count(headjax.attention_sites(MODEL), "7"), "asks for 7 heads, the model has 6"),
        (lambda: requested_count(headjax.attention_sites(MODEL), "some"), "'some' is no number"),
        (lambda: headjax.prune(MODEL, ["decoder/1"]), "expected stack/layer/head"),
        (lambda: headjax.prune(MODEL, ["decoder/1/1"]), "layer 1 of decoder has heads 0, 3"),
        (lambda: headjax.prune(MODEL, ["decoder/3/0"]), "head decoder/3/0: decoder has 3 layers"),
        (lambda: headjax.prune(MODEL, ["decoder/0/0", "encoder/0/0"]), "the model has no head stack 'encoder'"),
        (lambda: headjax.prune(MODEL, ["middle/0/1"]), "unknown head stack 'middle'"),
        (lambda: headjax.reconstruct(TWO, [BATCH], EIGHT), "all heads are removed"),
        (lambda: headjax.reconstruct(TWO, [BATCH], ONE, units=1.0), "units: must be at least 0 and below 1"),
        (
            lambda: headjax.reconstruct(nan("embeddings"), [BATCH], ONE),
            "decoder/0: sums over the calibration tokens are not finite",
        ),
        (
            lambda: headjax.reconstruction_order(nan("decoder", "final_norm"), [BATCH]),
            "reconstruction: the output is not finite",
        ),
        (lambda: headjax.score_heads(TWO, [BATCH], statistics=["entropi"]), "did you mean 'entropy'"),
        (lambda: prune_units(TWO, {("decoder", 0): [32]}), "units: decoder/0 has no unit 32; it has 32"),
        (lambda: prune_units(TWO, {("decoder", 1): range(32)}), "units: decoder/1 has 32 units and must keep one"),
    ],
}


@pytest.mark.parametrize(
    ("error", "call", "message"), [(error, *row) for error, rows in REFUSED.items() for row in rows]
)
def test_it_is_refused(error, call, message):
    with pytest.raises(error, match=message):
        call()
