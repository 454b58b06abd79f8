"""Tiny Hugging Face directories that the tests share."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headjax.core.errors import HeadjaxError
from headjax.core.tensors import Normal
from headjax.hub import either, from_huggingface, onnx, to_huggingface
from headjax.hub.families import FAMILIES
from headjax.hub.family import Family
from headjax.hub.fields import Fields
from headjax.hub.table import InexpressibleError
from headjax.models.model import Model
from tests import tiny
from tests.closeness import tolerance
from tests.command_line import main

BERT = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 20, "hidden_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 12, "max_position_embeddings": 10,
    "num_labels": 3,
}  # fmt: skip
DECODER = {
    "vocab_size": 20, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 2048,
}  # fmt: skip
LLAMA = {"model_type": "llama", **DECODER}
T5 = {
    "model_type": "t5", "vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8,
}  # fmt: skip
CONFIGS = {
    "bert": BERT | {"architectures": ["BertForPreTraining"]},
    "distilbert": {
        "model_type": "distilbert", "architectures": ["DistilBertForQuestionAnswering"], "vocab_size": 20, "dim": 8,
        "n_layers": 2, "n_heads": 4, "hidden_dim": 12, "max_position_embeddings": 10,
    },
    "roberta": BERT | {"model_type": "roberta", "architectures": ["RobertaForMaskedLM"]},
    "xlm-roberta": BERT | {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"]},
    "camembert": BERT | {"model_type": "camembert", "architectures": ["CamembertForTokenClassification"]},
    "mpnet": BERT | {"model_type": "mpnet", "architectures": ["MPNetForMaskedLM"]},
    "electra": BERT | {"model_type": "electra", "architectures": ["ElectraForMaskedLM"], "embedding_size": 6},
    "albert": BERT | {"model_type": "albert", "architectures": ["AlbertForMaskedLM"], "embedding_size": 6},
    "modernbert": {
        "model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"], "vocab_size": 20,
        "hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 12,
        "local_attention": 4, "global_attn_every_n_layers": 2, "max_position_embeddings": 10,
    },
    "gpt2": {"model_type": "gpt2", "vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 4, "n_positions": 10},
    "llama": LLAMA,
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 6},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "qwen3": LLAMA | {"model_type": "qwen3", "tie_word_embeddings": True},
    "smollm3": LLAMA | {"model_type": "smollm3", "no_rope_layers": [1, 0]},
    "gpt_neox": {
        "model_type": "gpt_neox", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 12, "max_position_embeddings": 40, "rotary_pct": 1.0,
    },
    "phi3": LLAMA | {"model_type": "phi3", "partial_rotary_factor": 0.5},
    "gemma2": {
        "model_type": "gemma2", **DECODER, "query_pre_attn_scalar": 16, "sliding_window": 4,
        "attn_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "model_type": "gemma3_text", **DECODER, "query_pre_attn_scalar": 16, "sliding_window": 4,
        "sliding_window_pattern": 2,
    },
    "bart": {
        "model_type": "bart", "vocab_size": 20, "d_model": 8, "encoder_layers": 2, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12,
        "max_position_embeddings": 10,
    },
    "t5": T5,
    "mt5": T5 | {"model_type": "mt5", "feed_forward_proj": "gated-gelu"},
    "vit": {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 12, "image_size": 4, "patch_size": 2,
    },
}  # fmt: skip
CONFIGS["marian"] = CONFIGS["bart"] | {
    "model_type": "marian", "share_encoder_decoder_embeddings": False, "pad_token_id": 1, "decoder_start_token_id": 1,
}  # fmt: skip
CONFIGS["deit"] = CONFIGS["vit"] | {"model_type": "deit", "architectures": ["DeiTForImageClassificationWithTeacher"]}
CONFIGS["dinov2"] = CONFIGS["vit"] | {"model_type": "dinov2", "architectures": ["Dinov2ForImageClassification"]}
CONFIGS["clip_vision_model"] = CONFIGS["vit"] | {"model_type": "clip_vision_model", "architectures": None}
CONFIGS["clip_text_model"] = BERT | {"model_type": "clip_text_model", "architectures": None, "eos_token_id": 3}
CONFIGS["nomic_bert"] = BERT | {"model_type": "nomic_bert", "architectures": ["NomicBertForMaskedLM"], "head_dim": 4}
RAGGED = ["encoder/0/1", "encoder/1/0", "encoder/1/2"]
SIZES = {"value_dim": 2, "head_dim": 2}


MODEL_TYPES = [family.model_type for family in FAMILIES]


def family(name: str) -> Family:
    return next(family for family in FAMILIES if family.model_type == name)


def config_of(fields: Mapping[str, Any], names: tuple[str, ...] = ()) -> Any:
    """The config of these config fields."""
    return family(fields["model_type"]).read(Fields(fields, tensors=names))


def model_of(fields: Mapping[str, Any], names: tuple[str, ...] = (), seed: int = 0) -> Model:
    """The model of these config fields, every parameter drawn at random."""
    config = config_of(fields, names)
    return Model(config, tiny.random_params(config.tensors(), Normal(0.02), 0.2, seed))


def rewrite(folder: Path, change: Any = None, **fields: Any) -> None:
    """Changes a directory: `change` the dict of its tensors, and fields of its config."""
    if change is not None:
        tensors = dict(load_file(folder / "model.safetensors"))
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def replaced(fields, *attentions, stack="encoder"):
    """The model of these fields with other formulations, layer by layer."""
    config = config_of(fields)
    old = config.stacks()[stack].layers
    layers = [dataclasses.replace(layer, attention=own) for layer, own in zip(old, attentions, strict=True)]
    return tiny.model(config.with_layers({stack: layers}))


def max_difference(model: Model, folder: Path, **options: Any) -> float:
    """The largest difference between all outputs of a model and of a directory."""
    return either.max_difference(model, folder, **options)


def example_batch(model: Model, length: int | None = None) -> dict[str, np.ndarray]:
    """Two random examples for a model, the second padded."""
    return onnx.example_batch(model, length)


def rounding(model):
    """Largest difference that another order of sums makes to the model's outputs."""
    output = model(example_batch(model))
    largest = max(float(np.abs(array).max()) for array in (output.hidden, output.logits) if array is not None)
    return tolerance(tiny.SUMS) * largest


def refused_export(model, folder, layout="auto", **options):
    """The one line of a refusal, after which nothing is there."""
    with pytest.raises(InexpressibleError) as caught:
        to_huggingface(model, folder / "out", layout, **options)
    assert not (folder / "out").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused_import(folder, kind=HeadjaxError):
    """The one line that refuses a directory, in Python and on the command line, where nothing is written."""
    with pytest.raises(kind) as caught:
        from_huggingface(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(folder)), message
    out = folder.parent / "out"
    assert main(["import", str(folder), str(out)]) == 2
    assert not out.exists()
    return message
