"""Admin's omega against the same recurrence in PyTorch, layer by layer on the same weights."""

import jax
import numpy as np
import pytest

import headjax
from headjax.core.tensors import FanIn
from headjax.initialization import Admin, Setting, profile
from headjax.mesh.distributed import put_whole_batch
from tests import tiny
from tests.closeness import assert_close

pytestmark = pytest.mark.parity
LAYERS = 4


def test_omega_is_what_torch_layers_give():
    """torch.nn's layers with our weights, and variances as `numpy.var` over the whole batch, padding included."""
    torch = pytest.importorskip("torch")
    sizes = {"width": tiny.WIDTH, "num_layers": LAYERS, "activation": "relu", "positions": "sinusoidal"}
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    plain = headjax.EncoderConfig(
        **tiny.layer(), **sizes, **rates, norm=headjax.nn.LayerNorm(), segments=0, initializer=FanIn()
    )
    config = Admin().configure(plain)
    params = config.initialize(jax.random.key(0))
    tokens = tiny.tokens(4, 9)["input_ids"]
    mask = (np.arange(9)[None, :] < np.array([9, 7, 5, 2])[:, None]).astype(np.int32)
    mesh = headjax.MeshConfig(data=1).build(jax.devices()[:1])
    batch = put_whole_batch({"input_ids": tokens, "attention_mask": mask}, mesh)
    found = profile(config, params, batch, Setting([batch], jax.random.key(1), mesh))["encoder"]

    embed = headjax.Model(config, params).embeddings
    x = torch.tensor(np.asarray(embed(tokens, positions=np.arange(9)[None, :])))
    norm = torch.nn.LayerNorm(tiny.WIDTH)
    omega, expected = 1.0, []
    with torch.no_grad():
        for weights in config.stacks()["encoder"].unstack(params["encoder"]):
            for f in (_attention(torch, weights["attention"], mask), _feed_forward(torch, weights["feed_forward"])):
                expected.append(omega)
                output = f(x)
                shortcut = omega * x
                omega = float(np.sqrt(np.var(shortcut.numpy()) + np.var(output.numpy())))
                x = norm(shortcut + output)
    assert_close(found, expected, sums=tiny.SUMS)


def _attention(torch, weights, mask):
    ours, output = (
        {name: torch.tensor(np.asarray(array)) for name, array in own.items() if name != "output"}
        for own in (weights, weights["output"])
    )
    width = tiny.WIDTH
    theirs = torch.nn.MultiheadAttention(width, 4, batch_first=True)
    names = ("query", "key", "value")
    state = {
        "in_proj_weight": torch.cat([ours[name].reshape(width, width).T for name in names]),
        "in_proj_bias": torch.cat([ours[f"{name}_bias"].reshape(width) for name in names]),
        "out_proj.weight": output["kernel"].reshape(width, width).T,
        "out_proj.bias": output["bias"],
    }
    theirs.load_state_dict(state)
    padding = torch.tensor(mask == 0)
    return lambda x: theirs(x, x, x, key_padding_mask=padding, need_weights=False)[0]


def _feed_forward(torch, weights):
    up, down, up_bias, down_bias = (
        torch.tensor(np.asarray(weights[name])) for name in ("up", "down", "up_bias", "down_bias")
    )
    return lambda x: torch.relu(x @ up + up_bias) @ down + down_bias
