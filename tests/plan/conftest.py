"""A slice of a TPU that is not one."""

import jax
import pytest

from headjax.plan.tpu import Slice, find_slice


@pytest.fixture
def eight_devices(monkeypatch):
    """A slice whose devices are simulated."""
    monkeypatch.setattr(Slice, "devices", lambda self: jax.devices())
    return find_slice("v5e-8")
