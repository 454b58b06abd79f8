"""Decoding with a cache is the forward of all tokens at once; `test_matrix.py` decodes every formulation."""

import jax
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder_decoder import BATCH, CONFIGS

TOKENS = tiny.tokens()["input_ids"]


def piecewise(model, batch, pieces, call=headjax.models.ForwardOptions()):
    """Logits of the batch's decoder tokens, in pieces of these lengths, the first into an empty cache."""
    model = model.unstacked(call.compute)

    def begin(batch):
        prompt = model.prompt(batch, call, 0)
        return prompt, model.decode(*(array[:, : pieces[0]] for array in prompt[:3]), prompt[3], call)

    prompt, (out, state) = jax.jit(begin)(batch)
    logits, start = [out], pieces[0]
    step = jax.jit(lambda state, *new: model.decode(*new, state, call))
    for length in pieces[1:]:
        out, state = step(state, *(array[:, start : start + length] for array in prompt[:3]))
        logits.append(out)
        start += length
    return np.concatenate(logits, axis=1)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_encoder_decoders(name):
    """With padding in the source; T5 also with heads removed, each other keeping its columns of the position bias."""
    model = tiny.model(CONFIGS[name])
    if name == "t5":
        model = headjax.prune(model, ["decoder/0/1", "decoder/1/0", "decoder/1/3", "cross/0/2", "encoder/1/1"])
    batch = BATCH | {"decoder_input_ids": np.asarray(model.decoder_inputs(BATCH))}
    assert_close(piecewise(model, batch, (1, 1, 6) if name == "t5" else (4, 4)), model(batch).logits, sums=tiny.SUMS)


def test_a_cache_in_bfloat16_is_half_the_size_and_as_long_as_the_positions():
    model = tiny.model(tiny.decoder_config(tiny.layer()))
    call = headjax.models.ForwardOptions(compute=headjax.Compute(dtype="bfloat16"))
    cache = call.compute.cast(model).prompt({"input_ids": TOKENS}, call, 2)[3]
    memory = cache.layers[0]["attention"]
    # [batch, heads, tokens, size], as attention reads them
    assert {name: (array.shape, str(array.dtype)) for name, array in memory.items()} == {
        "key": ((2, 4, 12, 4), "bfloat16"),
        "value": ((2, 4, 12, 4), "bfloat16"),
    }
    decoded = piecewise(model, {"input_ids": TOKENS}, (5, 5), call)
    np.testing.assert_allclose(decoded, model({"input_ids": TOKENS}).logits, atol=0.3)
