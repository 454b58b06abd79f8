"""Admin and DeepNorm: published numbers, the recurrence, what they refuse, and architectures that serialise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.core.tensors import FanIn
from headjax.initialization import Admin, AdminConstant, DeepNorm, Setting, constant_omega, profile
from headjax.mesh.distributed import put_whole_batch
from tests import tiny
from tests.closeness import assert_close, close_to
from tests.models.test_encoder import config as encoder_config
from tests.tiny import flatten

DEPTH = 3
POST = {
    "positions": "sinusoidal", "embedding_norm": True, "residual": "post_norm", "dropout": 0.1, "initializer": FanIn(),
}  # fmt: skip
SEEDS = jax.random.key(3)


def post_norm(**fields):
    """A decoder whose fresh embeddings have variance one, and whose sub-layers keep variance."""
    return tiny.decoder_config(*(tiny.layer(),) * DEPTH, **POST | fields)


def translation(encoder=DEPTH, decoder=2):
    sizes = {"vocab_size": tiny.VOCABULARY, "width": tiny.WIDTH, "num_layers": encoder, "decoder_layers": decoder}
    return headjax.EncoderDecoderConfig(**sizes, **tiny.layer(), **POST)


def batch_of(translate=False, rows=8):
    tokens = tiny.tokens(rows, 10)["input_ids"]
    mask = (np.arange(10)[None, :] < np.arange(3, 3 + rows)[:, None]).astype(np.int32)
    return {"input_ids": tokens, "attention_mask": mask} | ({"labels": tokens[:, :6]} if translate else {})


def setting(*batches, devices=1):
    mesh = headjax.MeshConfig(data=devices).build(jax.devices()[:devices])
    return Setting([put_whole_batch(batch, mesh) for batch in batches], SEEDS, mesh)


@pytest.fixture(scope="module")
def admin():
    """Architecture, fresh parameters and profile of a small translation model."""
    config = Admin().configure(translation())
    params = config.initialize(SEEDS)
    where = setting(batch_of(translate=True))
    return config, params, profile(config, params, where.batches[0], where)


def test_the_closed_form_has_the_packages_numbers():
    printed = {12: 2.0170, 24: 2.6013, 36: 3.0408, 96: 4.4948, 144: 5.3043, 200: 6.0746, 288: 7.0712, 768: 10.711}
    assert {count: constant_omega(count) for count in printed} == pytest.approx(printed, abs=6e-5)  # four decimals


def test_the_closed_form_counts_the_sub_layers_of_each_stack():
    config = AdminConstant().configure(translation())
    params = AdminConstant().draw(config, SEEDS)
    for stack, count in (("encoder", 6), ("decoder", 6)):
        shortcuts = [array for path, array in flatten(params[stack]).items() if path.endswith("shortcut")]
        assert shortcuts[0].shape[1] == tiny.WIDTH
        assert_close(np.concatenate(shortcuts), constant_omega(count), sums=1)


def test_admin_follows_its_recurrence_sub_layer_by_sub_layer(admin):
    """Recomputed in one forward without a scan, with the same dropout."""
    config, params, found = admin
    ratios = [jnp.ones(())]

    def join(joining):
        shortcut, outputs = ratios[-1] * joining.x, joining.f(joining.x)
        ratios.append(jnp.sqrt(jnp.var(shortcut) + jnp.var(outputs)))
        return joining.residual.norm(shortcut + outputs)

    @jax.jit
    def unrolled(params, batch):
        headjax.Model(config, params).forward(
            batch, headjax.models.ForwardOptions(key=SEEDS, compute=headjax.Compute(scan=False), join=join)
        )
        return jnp.stack(ratios[: 2 * DEPTH])

    batch = setting(batch_of(translate=True)).batches[0]
    assert_close(found["encoder"], unrolled(params, batch), sums=tiny.SUMS)


def test_measuring_fills_the_shortcuts_and_tells_the_history(admin):
    config, params, _ = admin
    where = setting(batch_of(translate=True))
    measured, history = Admin().measure(config, params, where)
    keyed = where._replace(key=jax.random.split(SEEDS, 1)[0])
    expected = profile(config, params, where.batches[0], keyed)
    run = measured["decoder"]["layers_0_1"]
    slots = ("attention_residual", "cross_attention_residual", "feed_forward_residual")
    filled = np.stack([run[slot]["shortcut"] for slot in slots], axis=1)
    assert_close(filled, np.broadcast_to(expected["decoder"].reshape(2, 3, 1), filled.shape), sums=1)
    assert_close(history["omega"]["encoder"], expected["encoder"], sums=tiny.SUMS)
    old, new = (tree["encoder"]["layers_0_2"]["attention"] for tree in (params, measured))
    assert all(one is other for one, other in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True))


def test_eight_devices_profile_what_one_does(admin):
    config, params, found = admin
    where = setting(batch_of(translate=True), devices=8)
    spread = profile(config, params, where.batches[0], where)
    for name, values in found.items():
        assert_close(spread[name], values, sums=tiny.SUMS)


def test_padding_can_be_left_out_of_the_variance():
    config = Admin().configure(post_norm(dropout=0.0))
    params = config.initialize(SEEDS)
    batch = batch_of()
    other = batch | {"input_ids": np.where(batch["attention_mask"] == 1, batch["input_ids"], 7)}
    where = setting(batch, other)

    def omega(index, exclude):
        return profile(config, params, where.batches[index], where, exclude_padding=exclude)["decoder"]

    assert_close(omega(0, True), omega(1, True), sums=tiny.SUMS)
    assert np.abs(omega(0, False) - omega(1, False)).max() > 1e-3
    assert np.abs(omega(0, True) - omega(0, False)).max() > 1e-3


@pytest.mark.parametrize("empty", ["rows", "padding"])
def test_an_empty_batch_is_an_error(empty):
    config = Admin().configure(post_norm())
    batch = batch_of()
    batch = {name: array[:0] for name, array in batch.items()} if empty == "rows" else batch
    batch = batch | {"attention_mask": np.zeros_like(batch["attention_mask"])}
    where = setting(batch)
    with pytest.raises(headjax.DataError, match=r"^batch: "):
        profile(config, config.initialize(SEEDS), where.batches[0], where, exclude_padding=True)


def test_a_stack_whose_input_is_far_below_variance_one_is_an_error():
    """Its second omega would be 0.1 or less and cut the shortcuts."""
    config = Admin().configure(post_norm(positions="none", embedding_norm=False, initializer=headjax.nn.Normal(0.02)))
    where = setting(tiny.tokens(8))
    with pytest.raises(headjax.DataError, match=r"^decoder: "):
        profile(config, config.initialize(SEEDS), where.batches[0], where)


def ratios(initialization, config):
    """By path, the standard deviation of the initialised weights over that of the plain ones."""
    configured = initialization.configure(config)
    plain, drawn = flatten(config.initialize(SEEDS)), flatten(initialization.draw(configured, SEEDS))
    weights = [path for path in drawn if path in plain and np.std(plain[path]) > 0]
    return {path: float(np.std(drawn[path]) / np.std(plain[path])) for path in weights}


def test_deep_norm_has_the_papers_scales():
    config = translation(encoder=3, decoder=2)
    configured = DeepNorm().configure(config)
    assert configured.alpha == pytest.approx(0.81 * (3**4 * 2) ** (1 / 16))
    assert configured.decoder_alpha == pytest.approx(6**0.25)
    found = ratios(DeepNorm(), config)
    encoder, decoder = 0.87 * (3**4 * 2) ** (-1 / 16), 24**-0.25
    assert found["encoder/layers_0_2/attention/value"] == close_to(encoder, sums=4)
    assert found["encoder/layers_0_2/feed_forward/up"] == close_to(encoder, sums=4)
    assert found["decoder/layers_0_1/cross_attention/output/kernel"] == close_to(decoder, sums=4)
    assert found["decoder/layers_0_1/attention/query"] == close_to(1.0, sums=4)
    assert DeepNorm().configure(post_norm()).alpha == pytest.approx((2 * DEPTH) ** 0.25)


@pytest.mark.parametrize(
    ("initialization", "config", "message"),
    [
        (Admin(), tiny.decoder_config(), "^residual: "),
        (AdminConstant(), tiny.decoder_config(), "^residual: "),
        (DeepNorm(), tiny.decoder_config(), "^residual: "),
        (DeepNorm(), encoder_config("albert"), "^shared_layers: "),
    ],
)
def test_what_an_initialisation_is_not_for_is_refused(initialization, config, message):
    with pytest.raises(headjax.ConfigError, match=message):
        initialization.configure(config)
