from __future__ import annotations

import numpy as np
import pytest

from headjax.attention import Collaborative, Tucker
from headjax.attention.collaborative import Concatenate
from headjax.core import tensors
from headjax.heads import gates
from headjax.heads.head_id import HeadId
from headjax.heads.pruning import prune
from headjax.heads.shared_dimensions import drop_unused
from headjax.heads.surgery import map_attention
from tests import tiny
from tests.closeness import assert_close

SIZES = {"num_heads": 4, "value_dim": 4, "head_dim": 4, "projection_bias": True, "content_bias": True}
SIZES["mixing_init"] = Concatenate()
LAYERS = {
    "collaborative": Collaborative(shared_dim=16, **SIZES),
    "tucker": Tucker(query_rank=16, key_rank=16, **SIZES),
}


@pytest.fixture(scope="module", params=list(LAYERS))
def model(request):
    """Every head has four shared dimensions of its own; head 1 also reads one of head 0's."""
    fresh = tiny.model(tiny.decoder_config(tiny.layer(LAYERS[request.param]), tiny.layer()))

    def own(stack, layer, attention, params):
        blocks = np.repeat(np.eye(4), 4, axis=1) * np.arange(1.0, 17.0)[None, :]
        blocks[1, 2] = 0.5
        mixing = blocks if isinstance(attention, Collaborative) else blocks[:, :, None] * np.eye(16)[None]
        return attention, params | {"mixing": np.asarray(mixing, np.float32)}

    return map_attention(fresh, own, layers=[0])


def test_dimensions_that_only_removed_heads_read_go_with_them(model):
    batch, removed = tiny.tokens(), [HeadId("decoder", 0, 0), HeadId("decoder", 0, 3)]
    pruned = prune(model, removed)
    tensors.check(pruned.config.tensors(), pruned.params)
    first = pruned.config.attentions()["decoder"][0]
    assert (first.query_size, first.key_size) == (9, 9)
    expected = model(batch, gates.without(model.config, removed)).logits
    assert_close(pruned(batch).logits, expected, sums=tiny.SUMS)


def test_heads_that_read_nothing_keep_one_dimension(model):
    attention = model.config.attentions()["decoder"][0].with_heads(range(4))
    params = model.config.stacks()["decoder"].unstack(model.params["decoder"])[0]["attention"]
    smaller, kept = drop_unused(attention, params | {"mixing": 0.0 * params["mixing"]})
    assert (smaller.query_size, smaller.key_size) == (1, 1)
    tensors.check(smaller.tensors(tiny.WIDTH, tiny.WIDTH), kept)


def test_formulations_without_shared_dimensions_stay(model):
    attention = tiny.multi_head()
    params = {"query": np.zeros(3)}
    assert drop_unused(attention, params) == (attention, params)
