"""The fields of layers that differ."""

from __future__ import annotations

import pytest

from headjax.core.errors import ConfigError
from headjax.hub.families.layer_types import (
    FULL,
    SLIDING,
    common,
    own_windows,
    read_layer_types,
    window,
    windows_from,
    windows_to,
)
from headjax.hub.fields import Fields


def test_a_null_window_is_none_and_an_absent_one_the_default():
    assert window().read(Fields({})) is None
    assert window(8).read(Fields({})) == 8
    assert window(8).read(Fields({"sliding_window": None})) is None
    assert window(8).read(Fields({"sliding_window": 3})) == 3
    assert window().write(None, "") == {"sliding_window": None}


def test_types_are_listed_or_follow_from_the_number():
    assert read_layer_types(Fields({}), 2, str) == ["0", "1"]
    assert read_layer_types(Fields({"layer_types": [SLIDING, FULL]}), 2, str) == [SLIDING, FULL]
    for types in ("full_attention", [FULL], [FULL, FULL, FULL]):
        with pytest.raises(ConfigError, match=r"config\.json: layer_types: expected a list of 2 types"):
            read_layer_types(Fields({"layer_types": types}), 2, str)


def test_windows_are_written_as_they_are_read():
    fields = {"use_sliding_window": True, "sliding_window": 5}
    found = windows_from(Fields(fields), 3, lambda number: number == 1)
    assert found == own_windows([FULL, SLIDING, FULL], 5)
    assert windows_to(found) == fields | {"layer_types": [FULL, SLIDING, FULL]}
    assert windows_from(Fields(windows_to(found)), 3, lambda number: False) == found
    assert windows_to(own_windows([FULL], None)) == {
        "layer_types": [FULL],
        "use_sliding_window": False,
        "sliding_window": None,
    }


def test_of_fields_that_differ_the_first_layers_count():
    assert common([{"a": 1}, {"a": 2, "b": 3}]) == {"a": 1, "b": 3}
