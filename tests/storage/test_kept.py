"""Measurements that are kept: the key that says what was measured."""

from __future__ import annotations

import numpy as np

from headjax.storage.files import key_of_study


def test_any_number_name_or_setting_makes_another_key():
    params = {"a": np.arange(5_000.0), "b": np.zeros(2)}
    late = params | {"a": np.where(np.arange(5_000) == 4_999, -1.0, params["a"])}
    renamed = {"a": params["a"], "c": params["b"]}
    keys = [key_of_study("x", arrays) for arrays in (params, late, renamed)] + [key_of_study("y", params)]
    assert len(set(keys)) == 4
    assert key_of_study("x", {name: array.copy() for name, array in params.items()}) == keys[0]
