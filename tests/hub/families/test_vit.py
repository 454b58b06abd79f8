"""ViT and DeiT: images of one size, poolers that only some files have."""

from __future__ import annotations

import pytest

from headjax.core.errors import ConfigError
from headjax.hub import from_huggingface, to_huggingface
from tests.hub.directories import CONFIGS, model_of

VIT = CONFIGS["vit"] | {"architectures": ["ViTModel"]}


def test_sizes_may_be_pairs():
    assert model_of(VIT | {"image_size": [4, 4]}).config == model_of(VIT).config
    with pytest.raises(ConfigError, match=r"image_size: expected a positive integer, got \[4, 6\]"):
        model_of(VIT | {"image_size": [4, 6]})


def test_a_pooler_shows_in_the_file(tmp_path):
    plain = model_of(VIT)
    pooled = model_of(VIT | {"pooler_act": "relu"}, ("pooler.dense.weight",))
    assert plain.config.pooler is None
    assert pooled.config.pooler.activation == "relu"
    for name, model in {"plain": plain, "pooled": pooled}.items():
        to_huggingface(model, tmp_path / name)
        assert from_huggingface(tmp_path / name).config == model.config
    with pytest.raises(ConfigError, match="pooler_output_size: 4 is not supported; supported: 8"):
        model_of(VIT | {"pooler_output_size": 4}, ("pooler.dense.weight",))


def test_only_deit_has_a_distilled_output():
    with pytest.raises(ConfigError, match="ViTForImageClassificationWithTeacher is not supported; supported: ViTModel"):
        model_of(VIT | {"architectures": ["ViTForImageClassificationWithTeacher"]})
    assert model_of(CONFIGS["deit"]).config.patches.distillation_token
