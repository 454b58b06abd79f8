"""The configuration of a run: the model that it describes, and how that model starts."""

from __future__ import annotations

import jax
import pytest

from headjax.core.errors import ConfigError
from headjax.core.serialize import to_data
from headjax.training.config import train_config
from tests import tiny
from tests.training import runs

FIELDS = runs.FIELDS | {"model": runs.POST_NORM}


@pytest.mark.parametrize(
    ("initialization", "residual"),
    [("admin", "post_norm"), ("admin_constant", "post_norm"), ("deep_norm", "post_norm"), (None, "pre_norm")],
)
def test_the_architecture_of_a_run_is_the_one_it_starts_from(initialization, residual):
    fields = to_data(train_config(FIELDS))
    fields["model"]["residual"] = {"kind": residual}
    fields["initialization"] = initialization and {"kind": initialization}
    started = train_config(fields)
    assert started.architecture() == started.start().config
    assert (started.architecture() == started.model.build()) == (initialization is None)


def test_initialisations_are_for_fresh_models(tmp_path):
    tiny.model(tiny.decoder_config()).save(tmp_path / "model")
    start = {"kind": "directory", "path": str(tmp_path / "model")}
    with pytest.raises(ConfigError, match=r"^initialization: "):
        train_config(FIELDS | {"model": start, "initialization": {"kind": "admin"}}).start()
    started = train_config(FIELDS | {"model": start}).start()
    assert started.config == tiny.decoder_config()
    assert jax.tree.structure(started.params) == jax.tree.structure(tiny.model(started.config).params)


def test_the_warm_up_ends_within_the_run():
    with pytest.raises(ConfigError, match=r"^config\.optimizer\.schedule\.warmup_steps: "):
        train_config(FIELDS | {"optimizer": runs.constant(warmup_steps=8)})


def test_errors_of_the_built_model_name_the_configs_field():
    """Fields that fit their types and not each other are found when the model is built."""
    given = FIELDS | {"model": FIELDS["model"] | {"attention_by_layer": [FIELDS["model"]["attention"]] * 2}}
    config = train_config(given)
    for build in (config.architecture, config.start):
        with pytest.raises(ConfigError, match=r"^config\.model\.attention_by_layer: "):
            build()
