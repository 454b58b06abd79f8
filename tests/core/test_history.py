"""A history entry names the action, its details and the versions."""

from __future__ import annotations

import jax

from headjax.core import history
from headjax.version import __version__


def test_an_entry_names_the_versions():
    versions = {"headjax": __version__, "jax": jax.__version__}
    assert history.entry("prune", heads=3) == {"action": "prune", "heads": 3, "versions": versions}
