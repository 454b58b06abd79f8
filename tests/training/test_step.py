"""The step: batches in parts, and moments spread over the copies, come to what the plain step comes to."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import headjax
from headjax.core.class_names import IGNORED
from headjax.core.tensors import count
from headjax.evaluation.task import measure_batch
from headjax.mesh.distributed import put_batch
from headjax.mesh.rules import ShardingConfig
from headjax.plan.plan import collectives
from headjax.training.step import Trainer, gradient
from tests import tiny
from tests.closeness import assert_close, assert_trees_close, close_to
from tests.hub.directories import T5, model_of
from tests.tiny import flatten

BATCH = 16
CONFIG = tiny.decoder_config(tiny.layer(), tied=False)
OPTIMIZER = headjax.AdamW(schedule=headjax.ConstantRate(peak=0.01), epsilon=1e-3).build(CONFIG.tensors(), 10)


@pytest.fixture(scope="module")
def batch():
    """Examples with very different numbers of targets: the mean of means would be another number."""
    made = tiny.tokens(batch=BATCH)
    labels = made["input_ids"].copy()
    for row in range(BATCH):
        labels[row, 2 + row // 2 :] = IGNORED
    return {**made, "labels": labels}


def made(mesh, config=CONFIG, optimizer=OPTIMIZER, **options):
    """A step and a state to start from, which is that of seed 0."""
    trainer = Trainer(config, optimizer, mesh, **options)
    return trainer, dataclasses.replace(trainer, seed=0).first_state()


def two_steps(mesh, batch, **options):
    step, state = made(mesh, **options)
    for _ in range(2):
        state, metrics = step(state, put_batch(batch, mesh))
    return state, metrics


def one_device():
    return headjax.MeshConfig(data=1).build(jax.devices()[:1])


def program(mesh, batch, config=CONFIG, sharding=ShardingConfig(), **options):
    """The lowered program of a step."""
    trainer = Trainer(config, OPTIMIZER, mesh, sharding=sharding, **options)
    return trainer.lower(trainer.abstract_state(), batch)


@pytest.fixture(scope="module")
def plain(batch):
    return two_steps(one_device(), batch)


def assert_the_same(found, plain):
    (state, metrics), (wanted, wanted_metrics) = found, plain
    for name in metrics._fields:
        assert float(getattr(metrics, name)) == close_to(
            float(getattr(wanted_metrics, name)), sums=2 * 2 * tiny.SUMS
        ), name
    # Adam divides a gradient's rounding by its size: any parameter may move like the largest.
    assert_trees_close(flatten(state.params), flatten(wanted.params), sums=2 * 2 * tiny.SUMS, floor=1.0)


@pytest.mark.parametrize(
    "sizes, accumulate",
    [
        ({"data": 1}, 16),
        ({"data": 2, "fsdp": 2, "model": 2}, 2),
        ({"slices": 2, "fsdp": 2, "model": 2}, 1),
        ({"slices": 2, "data": 2}, 2),
    ],
)
def test_a_batch_in_parts_on_any_mesh_is_the_batch(sizes, accumulate, plain, batch):
    devices = jax.devices()[: int(np.prod(list(sizes.values())))]
    assert_the_same(two_steps(headjax.MeshConfig(**sizes).build(devices), batch, accumulate=accumulate), plain)


def test_copies_add_up_their_parts_and_reduce_once(batch):
    """One gradient and the sums of losses and targets, however many the parts are."""
    sent = collectives(program(headjax.MeshConfig(data=8).build(), batch, accumulate=2).compile().as_text())
    assert sent.keys() == {"all-reduce"}
    assert sent["all-reduce"].bytes == 4 * count(CONFIG.tensors()) + 2 * 4


def test_every_part_of_every_copy_draws_its_own_dropout():
    mesh, key = headjax.MeshConfig(data=4).build(jax.devices()[:4]), jax.random.key(3)

    def losses_of(params, key, batch):
        return (headjax.models.Loss(params["weight"] * jax.random.uniform(key) * batch["ones"], batch["ones"]),)

    @jax.jit
    def drawn(batch):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return gradient(losses_of, (1.0,), {"weight": jnp.ones(())}, key, batch, 2)

    found = drawn(put_batch({"ones": np.ones(8, np.float32)}, mesh))
    draws = {
        float(jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, copy), part)))
        for copy in range(4)
        for part in range(2)
    }
    assert len(draws) == 8
    assert float(found.params["weight"]) == close_to(sum(draws) / 8, sums=8)


def test_moments_spread_over_the_copies_come_to_the_same(plain, batch):
    mesh = headjax.MeshConfig(data=8).build()
    sharding = ShardingConfig(optimizer="data")
    state, metrics = two_steps(mesh, batch, sharding=sharding)
    assert_the_same((state, metrics), plain)
    assert all(array.sharding.is_fully_replicated for array in jax.tree.leaves(state.params))
    held = sum(array.addressable_shards[0].data.nbytes for array in jax.tree.leaves(state.optimizer))
    # Two moments, an eighth of nearly everything.
    assert held < 1.1 * 2 * 4 * count(CONFIG.tensors()) / 8

    text = program(mesh, batch, sharding=sharding).compile().as_text()
    sent, gradient = collectives(text), 4 * count(CONFIG.tensors())
    assert sent.keys() <= {"all-reduce", "reduce-scatter", "all-gather"}
    # The parameters come back once; what is reduced is one gradient and the scalars of loss and norm.
    assert 0.9 * gradient < sent["all-gather"].bytes <= gradient
    reduced = sum(sent[kind].bytes for kind in ("all-reduce", "reduce-scatter") if kind in sent)
    assert gradient <= reduced < gradient + 256


@pytest.mark.whole
def test_every_generator_of_dropout_gives_a_step_that_can_be_repeated(batch):
    mesh, losses = headjax.MeshConfig(data=2, fsdp=2, model=2).build(), {}
    config = tiny.decoder_config(tiny.layer(), dropout=0.2, attention_dropout=0.2, tied=False)
    for prng in ("threefry2x32", "rbg"):
        runs = [
            made(mesh, config, compute=headjax.Compute(remat=remat), prng=prng) for remat in ("none", "none", "full")
        ]
        found = [step(state, put_batch(batch, mesh)) for step, state in runs]
        # The loss is one of the forward; the norm is of the backward pass, which has to drop the same again.
        for state, metrics in found[1:]:
            assert_the_same((state, metrics), found[0])
        losses[prng] = float(found[0][1].loss)
    assert losses["rbg"] != losses["threefry2x32"]
    assert losses["rbg"] == pytest.approx(losses["threefry2x32"], rel=0.1)


def test_steps_that_differ_in_the_seed_share_a_program_and_drop_differently(batch, compiled):
    config = tiny.decoder_config(tiny.layer(), dropout=0.5, embedding_dropout=0.0, tied=False)
    runs = [made(one_device(), config, seed=seed) for seed in (3, 4, 3)]
    losses = [float(step(state, put_batch(batch, one_device()))[1].loss) for step, state in runs]
    assert losses[0] == losses[2] != losses[1]
    assert len({step for step, _ in runs}) == 1
    assert compiled.count("step") == 1


def test_tokens_are_what_the_model_reads(batch):
    """Not targets, not padding; of both sides in encoder-decoders, patches of images."""
    mask = np.ones((BATCH, batch["input_ids"].shape[1]), np.int32)
    mask[:, -3:] = 0
    assert int(headjax.Model(CONFIG, {}).count_tokens(batch)) == batch["input_ids"].size
    assert int(headjax.Model(CONFIG, {}).count_tokens({**batch, "attention_mask": mask})) == mask.sum()
    _, metrics = two_steps(one_device(), {**batch, "attention_mask": mask}, accumulate=2)
    assert int(metrics.tokens) == mask.sum() != int(metrics.targets)
    labels = np.array([[3, 4, IGNORED], [5, 6, 7]])
    ids = np.ones((2, 4), np.int32)
    assert int(model_of(T5).count_tokens({"input_ids": ids, "labels": labels})) == 8 + 5
    vision = headjax.VisionConfig(
        attention=tiny.multi_head(), hidden=16, image_size=4, patch_size=2, channels=1, width=16, num_layers=1,
        task=headjax.tasks.Classification(classes=2),
    )  # fmt: skip
    images = {"pixel_values": np.zeros((3, 1, 4, 4), np.float32)}
    assert int(headjax.Model(vision, {}).count_tokens(images)) == 3 * vision.length


COLLABORATIVE = tiny.decoder_config(tiny.layer(tiny.collaborative()))


def after_one_step(kernel, accumulate=1, **sizes):
    """Loss, parameters and measures of a step that computes with a kernel."""
    mesh = headjax.MeshConfig(**sizes).build(jax.devices()[: math.prod(sizes.values())])
    compute, batch = headjax.Compute(attention=kernel), put_batch(tiny.tokens(batch=4), mesh)
    step, state = made(mesh, COLLABORATIVE, optax.sgd(0.1), compute=compute, accumulate=accumulate)
    state, metrics = step(state, batch)
    return (
        metrics,
        state.params,
        measure_batch(headjax.Model(COLLABORATIVE, state.params), None, compute, batch, mesh=mesh)[0],
    )


@pytest.mark.whole
def test_a_pallas_kernel_trains_over_a_mesh_as_the_reference_does():
    reference = after_one_step("einsum", data=1)
    for sizes, parts in (({"data": 2, "model": 2}, 1), ({"data": 2}, 2)):
        actual = after_one_step("collaborative_pallas", parts, **sizes)
        # A key's bias starts at zero and its gradient is zero but for what is left of terms that cancel.
        assert_trees_close(flatten(actual[1]), flatten(reference[1]), sums=2 * tiny.SUMS, floor=0.1)
        for one, other in zip(jax.tree.leaves(reference[::2]), jax.tree.leaves(actual[::2]), strict=True):
            assert_close(np.asarray(other), np.asarray(one), sums=2 * tiny.SUMS)
