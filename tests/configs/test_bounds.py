"""Every field of every config has its bounds: a wrong value is a ConfigError that names the field, or is none."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from pathlib import Path

import pytest

from headjax.conversion import ToCollaborative, ToDeep, ToFixed, ToGated, ToGrouped, ToLatent, ToTucker
from headjax.core.errors import ConfigError
from headjax.core.serialize import to_data
from headjax.core.tensors import Constant, FanIn, Normal, SlicedXavier, TruncatedNormal
from headjax.head_report.curves import CurveConfig
from headjax.head_report.study import StudyConfig
from headjax.heads.learned_gates import HardConcrete, Subset
from headjax.heads.named_orders import OrderConfig
from headjax.initialization import Admin, DSInit, LayerScale
from headjax.models.generation import Sample
from headjax.training.config import load_config, train_config
from headjax.training.distillation import Distillation
from headjax.training.optimizer import AdamW, Cosine, InverseSquareRoot, RAdam
from tests.attention.formulations import FORMULATIONS
from tests.tiny import decoder_config

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.py"))
WRONG = (-1, 0, 1, 2.5, -0.5, 1e300, 10**9, math.nan, math.inf, -math.inf, True, None, "x", "", [], {}, [-1], ["x"], ())


@functools.cache
def run(name):
    return train_config(load_config(str(CONFIGS / name)))


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
        *(Normal(), TruncatedNormal(), SlicedXavier(slices=2), FanIn(), Constant(1.0)),
        *(AdamW(schedule=schedule), RAdam(schedule=InverseSquareRoot(peak=1.0)), Distillation(steps=5)),
        *(Admin(), DSInit(), LayerScale(initial=0.1), Sample(), HardConcrete(weight=0.1), Subset(count=2)),
        *(OrderConfig(), StudyConfig(), CurveConfig(OrderConfig()), decoder_config()),
        *(ToCollaborative(shared_dim=4), ToDeep(), ToFixed(head_dim=4), ToGated(), ToGrouped(kv_heads=2)),
        *(ToLatent(rank=2), ToTucker(rank=2)),
    )
    for value in (*map(run, FILES), *more):
        walk(value)
    return sorted(found.values(), key=lambda value: type(value).__name__)


def attempt(build):
    """What is built, and an empty line; or nothing, and the line of the error."""
    try:
        return build(), ""
    except ConfigError as error:
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
            assert isinstance(held, bool) == isinstance(getattr(instance, name), bool), f"{name}={wrong!r}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_decay": -0.1}, "config.optimizer.weight_decay: must not be negative, got -0.1"),
        ({"epsilon": -1e-8}, "config.optimizer.epsilon: must be positive, got -1e-08"),
        ({"epsilon": 0.0}, "config.optimizer.epsilon: must be positive, got 0.0"),
        ({"clip_norm": -1.0}, "config.optimizer.clip_norm: must not be negative, got -1.0"),
        ({"b1": 5}, "config.optimizer.b1: must be at least 0 and below 1, got 5.0"),
        ({"b2": 1.0}, "config.optimizer.b2: must be at least 0 and below 1, got 1.0"),
        ({"weight_decay": True}, "config.optimizer.weight_decay: expected float, got True"),
        ({"schedule.final": -0.1}, "config.optimizer.schedule.final: must be from 0 to 1, got -0.1"),
        ({"schedule.peak": 0}, "config.optimizer.schedule.peak: must be positive, got 0.0"),
        ({"schedule.warmup_steps": 401}, "config.optimizer.schedule.warmup_steps: is 401, and the run has 400 steps"),
    ],
)
def test_optimizer_settings_that_would_train_nonsense(fields, message):
    data = copy.deepcopy(to_data(run("quickstart.py")))
    for path, value in fields.items():
        *groups, name = path.split(".")
        functools.reduce(dict.__getitem__, groups, data["optimizer"])[name] = value
    with pytest.raises(ConfigError) as error:
        train_config(data)
    assert str(error.value) == message
