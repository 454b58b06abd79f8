"""Whatever stands in a config, it is built or refused in one line."""

import numpy as np
import pytest
from ml_collections import ConfigDict, config_dict

from headjax.core.errors import ConfigError, HeadjaxError
from headjax.training.config import load_config, train_config
from tests.mutations import RECIPES, RUN, Silent, complaints, nested, run_all

MULTI = {"kind": "multi_head", "num_heads": 2, "head_dim": 4}
NONE = {"kind": "compressed", "rank": 4, "inner": {"kind": "no_heads"}}
DEEP = {"kind": "deep", "of": RECIPES["language_model"] | {"kind": "language_model", "attention": NONE}}
TALKING = {"kind": "talking", "num_heads": 2, "head_dim": 4, "logit_heads": 2, "softmax_heads": 3}


def run(recipe: str = "language_model", **changes: object) -> dict[str, object]:
    return RUN | {"model": {"kind": recipe} | RECIPES[recipe] | changes}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (run() | {"steps": 16**5000}, "config.steps"),
        (run(num_layers=[16**5000]), "config.model.num_layers"),
        (run(attention=NONE), "config.model.attention.inner"),
        (RUN | {"model": DEEP}, "config.model.of.attention.inner"),
        (run("t5", attention=TALKING), "config.model.position_bias"),
        ({None: 1}, "config"),
        (run(attention={1: 2}), "config.model.attention"),
        (run() | {"model": {"kind": "directory", "path": "x" * 10**4}}, "xxx"),
        (run() | {"x" * 10**4: 1}, "config.xxx"),
        (run() | {"model": {"kind": "directory", "path": "\ud800"}}, r"\ud800"),
        (run() | {"model": {"kind": "directory", "path": "\0"}}, r"\x00"),
        (ConfigDict(run(width=config_dict.required_placeholder(int))), "config.model.width"),
        (run(attention=MULTI | {"kind": np.array(["multi_head"])}), "config.model.attention.kind"),
        (run(attention=nested(5000, True)), "config.model.attention"),
        (run(attention=Silent()), "config.model.attention"),
        (run(num_layers=Silent()), "config.model.num_layers"),
    ],
)
def test_what_is_no_config_is_refused_by_the_path_of_its_field(data, field):
    with pytest.raises(HeadjaxError) as error:
        run_all(train_config(data))
    assert str(error.value).startswith(field), error.value
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("initializer", ["near_identity", "sliced_xavier", "xavier"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_any_initializer_draws_any_model(recipe, initializer):
    fields = {"initializer": {"kind": initializer}}
    data = (
        RUN | {"model": {"kind": "deep", "of": run()["model"] | fields}} if recipe == "deep" else run(recipe, **fields)
    )
    assert run_all(train_config(data)) == ()


def test_heads_that_mix_take_a_bias_for_each_softmax():
    assert run_all(train_config(run("t5", attention=TALKING | {"softmax_heads": 1, "logit_heads": 5}))) == ()


@pytest.mark.parametrize("override", ["--config=3", "--config", "--config.=3", "--config.steps", "steps=3"])
def test_an_override_of_no_field_is_refused(override, tmp_path):
    (tmp_path / "config.py").write_text(
        "from ml_collections import ConfigDict\nget_config = lambda arg: ConfigDict()\n"
    )
    with pytest.raises(ConfigError) as error:
        load_config(str(tmp_path / "config.py"), [override])
    assert override.removesuffix("=3") in str(error.value)


def test_a_mutated_config_builds_or_is_refused_in_one_line(tmp_path):
    found = complaints(0, 150, tmp_path)
    assert not found, "\n\n".join(found.values())
