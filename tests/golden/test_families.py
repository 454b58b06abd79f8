"""Golden outputs of a tiny model of every family of Hugging Face models: what every rebuild of the forward must give.

`engine/families.json` has configs as `transformers` writes them, and the names of the tensors by their shapes;
`engine/families.npz` the outputs.
"""

import json
from typing import Any

import numpy as np
import pytest

import headjax
from tests.golden.results import FOLDER, by_head, compare, summary, write_directory

FAMILIES: dict[str, Any] = json.loads((FOLDER / "families.json").read_text())

SCORED = {"BertForMaskedLM", "GPTNeoXForCausalLM", "Gemma2ForCausalLM", "BartForConditionalGeneration"}
"""Normalisations behind the layers, sub-layers side by side, normalisations on both sides, attention to a memory."""


def family(name: str, folder: Any) -> headjax.Model:
    """A tiny model whose tensors are drawn by their names."""
    spec = FAMILIES[name]
    sizes = {tensor: list(map(int, shape.split("x"))) for shape, names in spec["tensors"].items() for tensor in names}
    return headjax.from_huggingface(write_directory(spec["config"], sizes, folder))


def batch(config: dict[str, Any], seed: int = 0, size: int = 2) -> dict[str, np.ndarray]:
    """Examples of which the second has padding behind it, by the padding token of the config."""
    generator = np.random.default_rng(seed)
    if "patch_size" in config:
        pixels = (size, config.get("num_channels", 3), config["image_size"], config["image_size"])
        return {"pixel_values": generator.standard_normal(pixels, dtype=np.float32)}
    ids, mask = generator.integers(3, config["vocab_size"] - 1, (size, 9), dtype=np.int32), np.ones((size, 9), np.int32)
    mask[1, 6:] = 0
    if config["model_type"] == "clip_text_model":
        ids[0, 4] = ids[1, 2] = config["eos_token_id"]
    found = {"input_ids": np.where(mask == 1, ids, config.get("pad_token_id") or 0), "attention_mask": mask}
    if config.get("type_vocab_size", 0) > 1:
        found["token_type_ids"] = (np.arange(9, dtype=np.int32)[None] > 4) * mask
    if config.get("is_encoder_decoder"):
        found["decoder_input_ids"] = generator.integers(3, config["vocab_size"] - 1, (size, 7), dtype=np.int32)
        found["decoder_attention_mask"] = np.ones((size, 7), np.int32)
    return found


def outputs(model: headjax.Model, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Everything that a model computes, where there is no padding."""
    found = model(inputs)
    arrays = {"hidden": found.hidden, "logits": found.logits, "pooled": found.pooled, **(found.extra_logits or {})}
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask", np.zeros(0)))
    return {
        name: summary(np.asarray(array)[mask == 1 if array.shape[:2] == mask.shape else ...], 128)
        for name, array in arrays.items()
        if array is not None
    }


def labelled(name: str, seed: int) -> dict[str, np.ndarray]:
    """Three examples with labels at every token."""
    inputs = batch(FAMILIES[name]["config"], seed, size=3)
    if "decoder_input_ids" in inputs:
        labels = inputs.pop("decoder_input_ids")
        del inputs["decoder_attention_mask"]
        return inputs | {"labels": labels}
    return inputs | {"labels": np.where(inputs["attention_mask"] == 1, inputs["input_ids"], -100)}


@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_of_a_family(name, tmp_path):
    model = family(name, tmp_path)
    results = outputs(model, batch(FAMILIES[name]["config"]))
    if name in SCORED:
        batches = [labelled(name, seed) for seed in (1, 2)]
        scores = headjax.score_heads(model, batches)
        results |= {score: by_head(values) for score, values in scores.values.items()}
        removed = sorted(headjax.all_heads(model.config), key=str)[1::3]
        found = headjax.reconstruct(model, batches, removed, feed_forward=True, units=0.2)
        results["reconstructed"] = outputs(found.model, batch(FAMILIES[name]["config"]))["logits"]
    compare("families.npz", name, results)
