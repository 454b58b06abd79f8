"""Errors name their field."""

from __future__ import annotations

import pytest

from headjax.core.errors import ConfigError, HeadjaxError, KernelError, require


def test_a_requirement_names_its_field():
    require(True, "width", "must be even, got 3")
    with pytest.raises(ConfigError, match=r"^width: must be even, got 3$") as caught:
        require(False, "width", "must be even, got 3")
    assert isinstance(caught.value, HeadjaxError)
    assert isinstance(caught.value, ValueError)


def test_a_kernels_error_has_its_reason_alone():
    assert KernelError("pallas: no TPU; use einsum", "no TPU").reason == "no TPU"
    assert KernelError("no TPU").reason == "no TPU"
