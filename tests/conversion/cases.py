"""Models, targets and random products of the conversion tests."""

import jax
import jax.numpy as jnp
import numpy as np

from headjax.conversion import Target, ToCollaborative, ToFixed, ToGrouped, ToLatent
from headjax.conversion.collaborative import Solver
from headjax.conversion.model import convert_attention
from headjax.conversion.target import Products
from headjax.nn import AttentionOptions, Kind, Mask
from headjax.nn.norms import OffsetRMSNorm, RMSNorm
from headjax.nn.rotary import RotaryHalves, RotaryInterleaved, YarnScaling
from tests import tiny
from tests.models.test_encoder import config
from tests.models.test_encoder_decoder import t5, translation
from tests.models.test_vision import BATCH as IMAGES
from tests.models.test_vision import config as vision
from tests.nn.formulations import WIDTH, outputs_of, random_inputs

MASK = np.array([[1] * 10, [1] * 7 + [0] * 3])
PADDED = tiny.tokens() | {"attention_mask": MASK}
LABELS = np.random.default_rng(1).integers(1, tiny.VOCABULARY, (2, 8))
QUICK = Solver(sweeps=60)
EXACT: dict[str, Target] = {
    "collaborative": ToCollaborative(shared_dim=16),
    "latent": ToLatent(rank=16),
    "grouped": ToGrouped(kv_heads=4),
    "fixed": ToFixed(head_dim=6),
}


LOSSY: dict[str, Target] = {
    "collaborative": ToCollaborative(shared_dim=6, solver=QUICK),
    "latent": ToLatent(rank=8),
    "grouped": ToGrouped(kv_heads=2),
    "mean": ToGrouped(kv_heads=2, pooling="mean"),
    "fixed": ToFixed(head_dim=3),
}


def encoder(attention: Kind | None = None, name: str = "bert", **fields):
    return tiny.model(config(name, **{"attention": attention or tiny.multi_head(), "num_layers": 2} | fields))


def crossed(**fields):
    """An encoder-decoder of multi-head attention alone."""
    slots = dict.fromkeys(("decoder_attention", "cross_attention"), tiny.multi_head())
    return tiny.model(translation(**slots, **fields))


MODELS = {
    "padded": (encoder, PADDED),
    "causal": (lambda: tiny.model(tiny.decoder_config()), PADDED),
    "without biases": (lambda: encoder(tiny.multi_head(projection_bias=False, output_bias=False)), PADDED),
    "cross": (crossed, PADDED | {"labels": LABELS}),
    "own scale": (lambda: tiny.model(t5()), PADDED | {"labels": LABELS}),
    "images": (lambda: tiny.model(vision()), IMAGES),
}


def hidden(model, batch):
    mask = 1.0 if "labels" in batch else MASK[:, :, None]
    return np.asarray(model(batch).hidden) * mask


def attentions(model):
    return [attention for layers in model.config.attentions().values() for attention in layers]


NORMS = {"query_norm": RMSNorm(), "key_norm": RMSNorm()}
ROTARY = {
    "llama": tiny.grouped(4, 2, 4, rotary=RotaryHalves(base=100.0)),
    "qwen2": tiny.grouped(4, 2, 4, rotary=RotaryHalves(), projection_bias=True),
    "qwen3": tiny.grouped(4, 2, 4, rotary=RotaryHalves(), **NORMS),
    "gemma3": tiny.grouped(
        4, 2, 4, rotary=RotaryHalves(scaling=YarnScaling(2.0, 16)), query_norm=OffsetRMSNorm(), key_norm=OffsetRMSNorm()
    ),
    "ragged": tiny.grouped(3, 2, 4, kv_index=(1, 0, 0), rotary=RotaryInterleaved(), **NORMS),
    "multi_head": tiny.multi_head(3, 4, value_dim=3, scale=0.3, rotary=RotaryInterleaved()),
}
"""Layers whose keys turn."""


def converted_layer(attention, params, to):
    """Return a layer's new formulation and its arrays."""
    module = convert_attention(tiny.bound(attention, params, WIDTH, WIDTH), to)
    return module.kind, module.params


def output(attention, params, inputs=None):
    """Return what a layer computes of causal self-attention."""
    inputs = jnp.asarray(random_inputs()) if inputs is None else inputs
    return outputs_of(attention, params, inputs, AttentionOptions(mask=Mask(causal=True)))


LAYERS, ROWS, COLUMNS, HEADS, DIM = 2, 14, 13, 4, 3


def random_products(seed: int = 0, **sizes: int) -> Products:
    sizes = {"layers": LAYERS, "rows": ROWS, "columns": COLUMNS, "heads": HEADS, "dim": DIM} | sizes
    generator = np.random.default_rng(seed)
    shape = (sizes["heads"], sizes["dim"])
    left = generator.standard_normal((sizes["layers"], sizes["rows"], *shape))
    right = generator.standard_normal((sizes["layers"], sizes["columns"], *shape))
    return Products(jnp.asarray(left, jnp.float32), jnp.asarray(right, jnp.float32))


def layer_of(tree, i: int = 0):
    return jax.tree.map(lambda array: array[i], tree)


def tensor(products: Products) -> np.ndarray:
    return np.einsum("rhd,chd->hrc", np.asarray(products.left, np.float64), np.asarray(products.right, np.float64))
