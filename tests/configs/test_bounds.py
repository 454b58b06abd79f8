"""Whatever stands in a config, it is built or refused in one line that names the field."""

import copy
import dataclasses
import functools
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict, config_dict

import headjax
from headjax.core.memory import check_training_memory
from headjax.core.serialize import to_data
from headjax.core.tensors import Constant, FanIn, SlicedXavier, TruncatedNormal, count
from headjax.head_report.study import CurveConfig, StudyConfig
from headjax.initialization import Admin
from headjax.training.config import Cosine, InverseSquareRoot, RAdam
from tests.nn.formulations import FORMULATIONS
from tests.tiny import decoder_config

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.py") if path.stem != "common")
WRONG = (-1, 0, 1, 2.5, -0.5, 1e300, 10**9, math.nan, math.inf, -math.inf, True, None, "x", "", [], {}, [-1], ["x"], ())


@functools.cache
def shipped(name):
    return headjax.train_config(headjax.load_config(str(CONFIGS / name)))


def instances():
    """One instance of every config class that the config files, and the list here, hold."""
    found = {}

    def walk(value):
        if dataclasses.is_dataclass(value) and not type(value).__module__.startswith("headjax.data"):
            found.setdefault(type(value), value)
            for field in dataclasses.fields(value):
                walk(getattr(value, field.name))
        elif isinstance(value, tuple):
            for item in value:
                walk(item)

    schedule = Cosine(peak=1e-3)
    more = (
        *FORMULATIONS.values(),
        *(headjax.nn.Normal(), TruncatedNormal(), SlicedXavier(slices=2), FanIn(), Constant(1.0)),
        *(headjax.AdamW(schedule=schedule), RAdam(schedule=InverseSquareRoot(peak=1.0)), headjax.Distillation(steps=5)),
        *(Admin(), headjax.Sample(), headjax.HardConcrete(weight=0.1), headjax.Subset(count=2)),
        *(headjax.OrderConfig(), StudyConfig(), CurveConfig(headjax.OrderConfig()), decoder_config()),
        *(
            headjax.conversion.ToCollaborative(shared_dim=4),
            headjax.conversion.ToDeep(),
            headjax.conversion.ToFixed(head_dim=4),
            headjax.conversion.ToGrouped(kv_heads=2),
        ),
        headjax.conversion.ToLatent(rank=2),
    )
    for value in (*map(shipped, FILES), *more):
        walk(value)
    return sorted(found.values(), key=lambda value: type(value).__name__)


def attempt(build):
    """What is built, and an empty line; or nothing, and the line of the error."""
    try:
        return build(), ""
    except headjax.ConfigError as error:
        return None, str(error)


@pytest.mark.parametrize("instance", instances(), ids=lambda value: type(value).__name__)
def test_every_field_refuses_what_it_cannot_hold(instance):
    names = [field.name for field in dataclasses.fields(instance) if field.init]
    for name in names:
        for wrong in WRONG:
            built, said = attempt(functools.partial(dataclasses.replace, instance, **{name: wrong}))
            if built is None:
                assert said.partition(":")[0].partition(".")[0].partition("[")[0] in names, said
                assert "\n" not in said
                continue
            held = getattr(built, name)
            assert not isinstance(held, float) or math.isfinite(held), f"{name}={wrong!r}"
            assert not isinstance(getattr(instance, name), float) or isinstance(wrong, int | float | None), name
            chosen = name == "scan"  # "auto", or a truth value
            assert chosen or isinstance(held, bool) == isinstance(getattr(instance, name), bool), f"{name}={wrong!r}"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *(("weight_decay", -0.1), ("weight_decay", True), ("epsilon", -1e-8), ("epsilon", 0.0), ("clip_norm", -1.0)),
        *(("b1", 5), ("b2", 1.0), ("schedule.final", -0.1), ("schedule.peak", 0), ("schedule.warmup_steps", 401)),
    ],
)
def test_optimizer_settings_that_would_train_nonsense(path, value):
    data = copy.deepcopy(to_data(shipped("quickstart.py")))
    *groups, name = path.split(".")
    functools.reduce(dict.__getitem__, groups, data["optimizer"])[name] = value
    with pytest.raises(headjax.ConfigError, match=f"^config.optimizer.{path}: "):
        headjax.train_config(data)


MULTI = {"kind": "multi_head", "num_heads": 2, "head_dim": 4}
NONE = {"kind": "compressed", "rank": 4, "inner": {"kind": "no_heads"}}


SIZES = {"num_layers": 2, "attention": MULTI | {"head_dim": 4}, "width": 8, "hidden": 8}
FAMILIES = {
    "decoder": SIZES | {"vocab_size": 20, "max_length": 8},
    "encoder": SIZES | {"vocab_size": 20, "max_length": 8, "task": {"kind": "masked_language_model"}},
    "encoder_decoder": SIZES | {"vocab_size": 20, "position_bias": {"kind": "relative_buckets", "num_heads": 2}},
    "vision": SIZES
    | {"image_size": 4, "patch_size": 2, "channels": 1, "task": {"kind": "classification", "classes": 2}},
}
"""A small model of every family."""


def run(family: str = "decoder", **changes: object) -> dict[str, object]:
    schedule = {"kind": "cosine", "peak": 0.01, "warmup_steps": 1}
    return {
        "data": {"task": "python_code"}, "batch_size": 8, "steps": 2, "mesh": {"data": 1},
        "optimizer": {"kind": "adamw", "schedule": schedule}, "model": {"kind": family} | FAMILIES[family] | changes,
    }  # fmt: skip


def nested(depth):
    """Groups within each other."""
    data = 1
    for _ in range(depth):
        data = {"inner": data, "kind": "compressed"}
    return data


def run_all(run):
    """Whatever training does with a run before data is read, and its first step without numbers; the loss's shape."""
    assert headjax.train_config(to_data(run)) == run
    config = run.architecture()
    check_training_memory("config.model", count(config.tensors()), 2**32)
    headjax.summarize(config, 4)
    batch = config.example_batch(2, 4)

    def loss(key, batch):
        model = headjax.Model(config, config.initialize(key))
        options = headjax.models.ForwardOptions(key=key, compute=run.compute)
        return model.losses(model.forward(batch, options), batch).mean()

    return jax.eval_shape(loss, jax.random.key(0), batch).shape


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (run() | {"steps": 16**5000}, "config.steps"),
        (run(num_layers=[16**5000]), "config.model.num_layers"),
        (run(attention=NONE), "config.model.attention.inner"),
        ({None: 1}, "config"),
        (run(attention={1: 2}), "config.model.attention"),
        (run() | {"x" * 10**4: 1}, "config.xxx"),
        (ConfigDict(run(width=config_dict.required_placeholder(int))), "config"),
        (run(attention=MULTI | {"kind": np.array(["multi_head"])}), "config.model.attention.kind"),
        (run(attention=nested(5000)), "config"),
    ],
)
def test_what_is_no_config_is_refused_by_the_path_of_its_field(data, field):
    with pytest.raises(headjax.HeadjaxError) as error:
        run_all(headjax.train_config(data))
    assert str(error.value).startswith(field), error.value
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("initializer", ["sliced_xavier", "xavier"])
@pytest.mark.parametrize("family", FAMILIES)
def test_any_initializer_draws_any_model(family, initializer):
    assert run_all(headjax.train_config(run(family, initializer={"kind": initializer}))) == ()
