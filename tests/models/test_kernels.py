"""A kernel that a model cannot use is refused before anything is computed, naming the kernel and the layer."""

from __future__ import annotations

import pytest

from headjax.attention import Talking
from headjax.core.errors import ConfigError
from headjax.models import Compute
from headjax.models.kernels import check_kernels
from tests import tiny


@pytest.mark.parametrize(
    "layer, attention, dtype, message",
    [
        (tiny.multi_head(1, 768), "cudnn", "bfloat16", r"\(multi_head\): qk_dim is 768, and its largest is 128"),
        (tiny.multi_head(), "collaborative_pallas", "float32", r"\(multi_head\): it needs one shared query"),
        (
            Talking(num_heads=2, logit_heads=2, softmax_heads=2, head_dim=4),
            "xla",
            "float32",
            r"\(talking\): talking heads mix the weights",
        ),
    ],
    ids=["cudnn", "collaborative_pallas", "talking"],
)
def test_the_layer_that_does_not_fit_is_named(layer, attention, dtype, message):
    # The first layer can use every kernel that runs here, the second cannot.
    first = tiny.collaborative() if attention == "collaborative_pallas" else tiny.multi_head()
    config = tiny.decoder_config(tiny.layer(first), tiny.layer(layer))
    named = rf"^compute.attention: {attention} cannot compute decoder.layers\[1\].attention {message}"
    with pytest.raises(ConfigError, match=named):
        check_kernels(config, Compute(attention=attention, dtype=dtype), training=False)
    check_kernels(config, Compute(), training=True)


def test_dropout_counts_in_training_only():
    config = tiny.decoder_config(tiny.layer(attention_dropout=0.1))
    check_kernels(config, Compute(attention="xla"), training=False)
    with pytest.raises(ConfigError, match=r"xla cannot compute decoder.layers\[0\].attention .* no dropout"):
        check_kernels(config, Compute(attention="xla"), training=True)


def test_names_and_types_are_checked_when_the_options_are_made():
    with pytest.raises(ConfigError, match="attention: unknown attention kernel 'splas'; did you mean 'splash'"):
        Compute(attention="splas")
    with pytest.raises(ConfigError, match="attention: cudnn computes in bfloat16 and float16, and dtype is float32"):
        Compute(attention="cudnn")
