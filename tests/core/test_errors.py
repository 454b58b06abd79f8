"""Errors name their field."""

from __future__ import annotations

import pytest

from headjax.core.errors import ConfigError, DataError, HeadjaxError, KernelError, require, within


def test_a_requirement_names_its_field():
    require(True, "width", "must be even, got 3")
    with pytest.raises(ConfigError, match=r"^width: ") as caught:
        require(False, "width", "must be even, got 3")
    assert isinstance(caught.value, HeadjaxError)
    assert isinstance(caught.value, ValueError)


def test_a_field_is_named_with_its_path():
    with pytest.raises(ConfigError, match=r"^config\.model\.width: "), within("config"), within("model"):
        require(False, "width", "must be even")
    with pytest.raises(DataError, match=r"^text\.txt: "), within("config"):
        raise DataError("text.txt: empty")


def test_a_kernels_error_has_its_reason_alone():
    assert KernelError("pallas: no TPU; use einsum", "no TPU").reason == "no TPU"
    assert KernelError("no TPU").reason == "no TPU"


def test_a_message_quotes_no_whole_file():
    for kind in (HeadjaxError, ConfigError, KernelError):
        message = str(kind(f"config.json: pruned_heads: got {'7, ' * 10**6}; layer 3"))
        assert len(message) < 2000
        assert message.startswith("config.json: pruned_heads: got 7, ")
        assert message.endswith("; layer 3")
    assert str(HeadjaxError("width: is 3")) == "width: is 3"
