from __future__ import annotations

import json

from headjax.attention import NoHeads
from headjax.core import tensors
from headjax.heads.pruning import prune
from headjax.models import Compute
from headjax.models.summary import summarize
from tests import tiny
from tests.models.test_encoder import config

MIXED = tiny.decoder_config(tiny.layer(), tiny.layer(tiny.collaborative()), tiny.layer(NoHeads()))


def test_a_mixed_decoder():
    summary = summarize(MIXED, 8)
    assert [layer.kind for layer in summary.layers] == ["multi_head", "collaborative", "no_heads"]
    assert [layer.heads for layer in summary.layers] == [(0, 1, 2, 3), (0, 1, 2, 3), ()]
    assert summary.heads == 8
    assert summary.parameters == tensors.count(MIXED.tensors()) == tiny.model(MIXED).num_parameters
    assert summary.flops == MIXED.flops(8)
    assert summary.layers[0].sizes == {"head_dim": 4}
    assert summary.layers[0].parameters == 4 * (16 * 16 + 16)
    # Keys and values of 4 heads of 4 in float32; one shared key of 8, 4 values of 4 and 4 content logits; nothing.
    assert [layer.cache_bytes_per_token for layer in summary.layers] == [4 * 32, 4 * (8 + 16 + 4), 0]
    assert summary.cache_bytes_per_token == 4 * 60
    assert summarize(MIXED, 8, Compute(dtype="bfloat16")).cache_bytes_per_token == 2 * 60


def test_removed_heads_are_gone_and_the_others_keep_their_numbers():
    pruned = prune(tiny.model(MIXED), ["decoder/0/1"]).config
    layer = summarize(pruned, 8).layers[0]
    assert layer.heads == (0, 2, 3)
    assert layer.parameters == 3 * 3 * (16 * 4 + 4) + 3 * 4 * 16 + 16


def test_it_is_json_data():
    data = summarize(MIXED, 8).to_json()
    assert json.loads(json.dumps(data)) == data
    assert set(data) >= {"parameters", "heads", "flops", "cache_bytes_per_token", "layers"}
    assert set(data["layers"][0]) >= {"stack", "layer", "kind", "heads", "sizes", "parameters", "flops"}


def test_encoders_have_no_cache_and_shared_layers_say_so():
    summary = summarize(config("albert"), 8)
    assert summary.cache_bytes_per_token == 0
    assert [layer.tied_layers for layer in summary.layers] == [(0, 1, 2)] * 3
    assert summary.heads == 12
