"""Slices by name, and the compiler for them."""

import importlib.util

import pytest

import headjax
from headjax.plan.tpu import find_slice

DOCUMENTED = """
v2-8 v2:2x2 8; v3-32 v3:4x4 32; v3-64 v3:4x8 64; v3-128 v3:8x8 128; v3-512 v3:16x16 512; v4-8 v4:2x2x1 4
v4-128 v4:4x4x4 64; v5e-1 v5e:1x1 1; v5e-8 v5e:2x4 8; v5litepod-16 v5e:4x4 16; v5e-256 v5e:16x16 256; v5p-8 v5p:2x2x1 4
v5p-16 v5p:2x2x2 8; v5p-64 v5p:2x4x4 32; v5p-256 v5p:4x4x8 128; v6e-8 v6e:2x4 8; v5e-256x2 v5e:16x16 512
v5p-8x4 v5p:2x2x1 16
"""


def test_shapes_and_devices_are_those_of_the_documentation():
    for name, topology, devices in map(str.split, DOCUMENTED.strip().replace("\n", ";").split(";")):
        assert (find_slice(name).topology, find_slice(name).num_devices) == (topology, int(devices))


UNKNOWN = ("", "v9-8", "v3", "v3_32", "tpu", "v5e-8x0", "v5e-8x", "v3-" + "9" * 5000)


@pytest.mark.parametrize("name", [*UNKNOWN, "v5e-2", "v5e-512", "v3-24", "v5p-4", "v5e-2x2", "v5e:2x2x1"])
def test_a_slice_that_does_not_exist_is_refused_with_those_that_do(name):
    with pytest.raises(headjax.ConfigError, match=r"^topology: ") as caught:
        find_slice(name)
    if ":" not in name:
        assert "known: v2-8 to v2-512, v3-8" in str(caught.value) or f"{name.split('-')[0]}-8" in str(caught.value)


def test_without_the_compiler_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(headjax.HeadjaxError, match="libtpu"):
        find_slice("v5e-8").devices()
