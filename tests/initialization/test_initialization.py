"""Initialisations are refused where they do not fit, and their architectures serialise."""

from __future__ import annotations

import pytest

from headjax.core.errors import ConfigError
from headjax.core.serialize import from_data, to_data
from headjax.initialization import Admin, AdminConstant, DeepNorm, Initialization
from headjax.models.shared_stack import SharedStack
from tests import tiny
from tests.initialization.models import POST, post_norm


@pytest.mark.parametrize(
    ("initialization", "config", "message"),
    [
        (Admin(), tiny.decoder_config(), r"^decoder\.layers\[0\]\.residual: "),
        (AdminConstant(), tiny.decoder_config(), r"^decoder\.layers\[0\]\.residual: "),
        (DeepNorm(), tiny.decoder_config(), r"^decoder\.layers\[0\]\.residual: "),
        (DeepNorm(), post_norm(decoder=SharedStack(layers=(POST,) * 2)), r"^decoder\.layers: "),
    ],
)
def test_what_an_initialisation_is_not_for_is_refused(initialization, config, message):
    with pytest.raises(ConfigError, match=message):
        initialization.configure(config)


def test_an_unknown_kind_is_named():
    with pytest.raises(ConfigError, match=r"config\.kind: "):
        from_data(Initialization, {"kind": "admim"})


@pytest.mark.parametrize("kind", [Admin, AdminConstant, DeepNorm])
def test_changed_architectures_serialise(kind):
    config = kind().configure(post_norm())
    assert from_data(type(config), to_data(config)) == config
    assert from_data(Initialization, to_data(kind())) == kind()
