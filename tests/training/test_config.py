"""The configuration of a run: the model that it describes, and how that model starts."""

from __future__ import annotations

import pytest

import headjax
from tests.training import runs

FIELDS = runs.FIELDS | {"model": runs.POST_NORM}


@pytest.mark.parametrize(
    ("initialization", "residual"),
    [("admin", "post_norm"), ("admin_constant", "post_norm"), ("deep_norm", "post_norm"), (None, "pre_norm")],
)
def test_the_architecture_of_a_run_is_its_model_as_the_initialisation_wants_it(initialization, residual):
    model = FIELDS["model"] | {"residual": residual}
    started = headjax.train_config(
        FIELDS | {"model": model, "initialization": initialization and {"kind": initialization}}
    )
    assert started.trained(0) is None
    assert (started.architecture() == started.model) == (initialization is None)


def test_the_warm_up_ends_within_the_run():
    with pytest.raises(headjax.ConfigError, match=r"^config\.optimizer\.schedule\.warmup_steps: "):
        headjax.train_config(FIELDS | {"optimizer": runs.constant(warmup_steps=8)})


def test_fields_that_do_not_fit_each_other_are_named():
    with pytest.raises(headjax.ConfigError, match=r"^config\.model\.attention: "):
        headjax.train_config(FIELDS | {"model": FIELDS["model"] | {"attention": [FIELDS["model"]["attention"]] * 2}})
