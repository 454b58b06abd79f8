"""The layout `maxtext`: an Orbax checkpoint of parameters, and the sizes that MaxText reads from a YAML file.

MaxText's block `qwen2` computes Llama, Mistral, Qwen2 and Qwen3 by two flags, and scales logits itself, which its block
`llama2` leaves to the queries' weights: so no weight changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from headjax.core.kind import Kind
from headjax.core.tensors import flatten, nested
from headjax.hub.rules import places
from headjax.hub.table import InexpressibleError
from headjax.models.decoder import DecoderConfig
from headjax.models.model import Model
from headjax.nn.rotary import LinearScaling, Llama3Scaling
from headjax.storage.arrays import write_params

CHECKPOINT, SIZES = "0", "maxtext.yml"
FAMILIES = ("qwen2", "qwen3", "llama")
"""Families whose models the block computes; the first that expresses a model gives the `config.json`."""

_LAYER = {
    **{f"attention/{name}": f"self_attention/{name}/kernel" for name in ("query", "key", "value")},
    **{f"attention/{name}_bias": f"self_attention/{name}/bias" for name in ("query", "key", "value")},
    **{f"attention/{name}_norm/scale": f"self_attention/{name}_norm/scale" for name in ("query", "key")},
    "attention/output/kernel": "self_attention/out/kernel",
    "attention_residual/norm/scale": "pre_self_attention_layer_norm/scale",
    "feed_forward_residual/norm/scale": "post_self_attention_layer_norm/scale",
    "feed_forward/gate": "mlp/wi_0/kernel",
    "feed_forward/up": "mlp/wi_1/kernel",
    "feed_forward/down": "mlp/wo/kernel",
}
_TURNING = frozenset(f"attention/{name}{part}" for name in ("query", "key") for part in ("", "_bias", "_norm/scale"))
_WHOLE = {
    "embeddings/token": "token_embedder/embedding",
    "decoder/final_norm/scale": "decoder/decoder_norm/scale",
    "output/kernel": "decoder/logits_dense/kernel",
}


def write_maxtext(model: Model, folder: Path) -> tuple[int, int]:
    """Write a checkpoint and its sizes; return the number of arrays and of their bytes."""
    config: Any = model.config
    sizes = _sizes(config)
    tensors, params = places(config), flatten(model.params)
    arrays = {theirs: tensors[ours].array(params) for ours, theirs in _WHOLE.items() if ours in tensors}
    for ours, theirs in _LAYER.items():
        if f"decoder/0/{ours}" in tensors:
            layers = [tensors[f"decoder/{number}/{ours}"].array(params) for number in range(config.num_layers)]
            if sizes["rope_type"] == "llama3.1" and ours in _TURNING:  # which rotates dimensions 2i and 2i + 1 together
                halves = ((np.split(layer, 2, axis=-1), layer.shape) for layer in layers)
                layers = [np.stack(parts, axis=-1).reshape(shape) for parts, shape in halves]
            arrays[f"decoder/layers/{theirs}"] = np.stack(layers, axis=1)  # where MaxText scans them
    write_params({"params": {"params": nested(arrays)}}, folder / CHECKPOINT, "items")
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in sizes.items()]
    (folder / SIZES).write_text("".join(lines), encoding="utf-8")
    return len(arrays), sum(array.nbytes for array in arrays.values())


def _sizes(config: DecoderConfig) -> dict[str, Any]:
    """Return the fields of MaxText's config that differ from its `base.yml`; the layers are equal."""
    attention: Kind = config.attention[0]
    scaling = attention.rotary.scaling
    others = {
        "a task": config.task is not None,
        "windows": any(config.window),
        "biases of the output projection": attention.output_bias,
        "biases of the feed-forward": config.feed_forward_bias,
        f"the activation {config.activation}": config.activation != "silu",
        f"{scaling}": not (scaling is None or scaling == Llama3Scaling() or isinstance(scaling, LinearScaling)),
    }
    other = next((name for name, has in others.items() if has), None)
    if other is not None:
        raise InexpressibleError(f"layout maxtext: its block has no {other}; layout native can")
    return {
        "base_config": "base.yml",
        "decoder_block": "qwen2",
        "base_emb_dim": config.width,
        "base_num_decoder_layers": config.num_layers,
        "base_num_query_heads": attention.num_heads,
        "base_num_kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "base_mlp_dim": config.hidden[0],
        "vocab_size": config.vocab_size,
        "attention_bias": attention.projection_bias,
        "use_qk_norm": attention.query_norm is not None,
        "normalization_layer_epsilon": config.norm.epsilon,
        "logits_via_embedding": config.tied,
        "normalize_embedding_logits": False,
        "rope_type": "llama3.1" if scaling == Llama3Scaling() else "default",  # MaxText has its own numbers
        "rope_max_timescale": round(attention.rotary.base),
        **({"rope_linear_scaling_factor": scaling.factor} if isinstance(scaling, LinearScaling) else {}),
    }
