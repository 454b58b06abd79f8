"""Whatever stands in a config, it is built or refused in one line that names the field."""

import copy
import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict, config_dict

import headjax
from headjax.core.serialize import to_data
from headjax.core.tensors import Constant, FanIn, SlicedXavier, TruncatedNormal
from headjax.head_report.study import CurveConfig, StudyConfig
from headjax.initialization import Admin
from headjax.training.optimizer import Cosine, InverseSquareRoot, RAdam
from tests.mutations import FAMILIES, RUN, nested, run_all
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


def run(family: str = "decoder", **changes: object) -> dict[str, object]:
    return RUN | {"model": {"kind": family} | FAMILIES[family] | changes}


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
        (run(attention=nested(5000, True)), "config"),
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
