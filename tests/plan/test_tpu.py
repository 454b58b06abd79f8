"""Slices by name: their shapes follow the documentation, and what does not exist is refused with what does."""

import importlib.metadata
import importlib.util
import re

import jax
import pytest

from headjax.core.errors import ConfigError, HeadjaxError
from headjax.plan.collectives import Collective
from headjax.plan.tpu import CHIPS, _check_libtpu, find_slice, roofline

DOCUMENTED = {
    "v2-8": ("v2:2x2", 8),
    "v3-32": ("v3:4x4", 32),
    "v3-64": ("v3:4x8", 64),
    "v3-128": ("v3:8x8", 128),
    "v3-512": ("v3:16x16", 512),
    "v4-8": ("v4:2x2x1", 4),
    "v4-128": ("v4:4x4x4", 64),
    "v5e-1": ("v5e:1x1", 1),
    "v5e-8": ("v5e:2x4", 8),
    "v5e-16": ("v5e:4x4", 16),
    "v5litepod-16": ("v5e:4x4", 16),
    "v5e-256": ("v5e:16x16", 256),
    "v5p-8": ("v5p:2x2x1", 4),
    "v5p-16": ("v5p:2x2x2", 8),
    "v5p-64": ("v5p:2x4x4", 32),
    "v5p-256": ("v5p:4x4x8", 128),
    "v6e-8": ("v6e:2x4", 8),
    "v5e-256x2": ("v5e:16x16", 512),
    "v5p-8x4": ("v5p:2x2x1", 16),
}


@pytest.mark.parametrize("name", list(DOCUMENTED))
def test_shapes_and_devices_are_those_of_the_documentation(name):
    assert (find_slice(name).topology, find_slice(name).num_devices) == DOCUMENTED[name]


def test_a_compiler_string_is_a_slice_too():
    assert find_slice("v3:4x8")[1:] == find_slice("v3-64")[1:]
    assert find_slice("v3-32").resized(128).topology == "v3:8x8"
    assert find_slice("v5e-16x2").resized(256) == find_slice("v5e-256x2")


def test_a_range_has_every_size_and_several_of_the_largest():
    names = [each.name for each in find_slice("v5e-16").between(8, 512)]
    assert names == ["v5e-8", "v5e-16", "v5e-32", "v5e-64", "v5e-128", "v5e-256", "v5e-256x2"]
    assert [each.name for each in find_slice("v3-8").between(32, 128)] == ["v3-32", "v3-64", "v3-128"]
    assert [each.name for each in find_slice("v5e-16x2").between(64, 999)] == ["v5e-64x2", "v5e-128x2", "v5e-256x2"]
    with pytest.raises(ConfigError, match=r"^scale: there is no v3 from 9 to 15; known: v3-8, v3-16, "):
        find_slice("v3-8").between(9, 15)
    with pytest.raises(ConfigError, match=r"^scale: there is no v3 from 512 to 8; known: "):
        find_slice("v3-8").between(512, 8)
    with pytest.raises(ConfigError, match=r"^scale: 1,000,000 is more than 64 slices v5e-256$"):
        find_slice("v5e-8").between(8, 1_000_000)


@pytest.mark.parametrize("name", ["", "v9-8", "v3", "v3_32", "tpu", "v5e-8x0", "v5e-8x", "v3-" + "9" * 5000])
def test_an_unknown_generation_lists_the_known(name):
    with pytest.raises(
        ConfigError, match=r"^topology: unknown TPU slice '.*'; known: v2-8 to v2-512, v3-8 to v3-2048, "
    ):
        find_slice(name)


@pytest.mark.parametrize("name", ["v5e-2", "v5e-512", "v3-24", "v5p-4", "v5e-2x2"])
def test_an_impossible_size_lists_the_possible(name):
    chip = name.split("-")[0]
    with pytest.raises(
        ConfigError, match=f"^topology: there is no {name.removesuffix('x2')}; known: .*{chip}-8, {chip}-16, "
    ):
        find_slice(name)
    with pytest.raises(ConfigError, match=r"v5e:2x2x1: a v5e slice has 2 dimensions"):
        find_slice("v5e:2x2x1")


def test_newer_chips_are_faster_in_every_respect():
    v2, v3, v5e, v6e = (CHIPS[name] for name in ("v2", "v3", "v5e", "v6e"))
    assert v2[5:8] < v3[5:8]
    assert v5e[5:8] < v6e[5:8]


def test_without_the_compiler_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HeadjaxError, match="libtpu"):
        find_slice("v5e-8").devices()


@pytest.mark.parametrize(
    "found, refused", [("0.0.52", True), ("0.0.420", True), ("0.0.42.1", False), ("0.0.42", False)]
)
def test_a_compiler_of_another_version_is_refused_before_it_is_asked(found, refused, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["scipy", 'libtpu==0.0.42.*; extra == "tpu"'])
    if not refused:
        _check_libtpu()
        return
    said = f"needs libtpu 0.0.42, found {found}: pip install 'libtpu==0.0.42.*'"
    with pytest.raises(HeadjaxError, match=f"^compiling for a TPU with jax {jax.__version__} {re.escape(said)}$"):
        find_slice("v5e-8").devices()


def test_the_roofline_is_its_highest_resource():
    chip = CHIPS["v3"]
    sent = {"all-reduce": Collective(1, 10**9), "all-gather": Collective(3, 10**9)}
    found = roofline(chip, flops=123e12 / 2, recomputed=123e12 / 4, traffic=450e9, collectives=sent)
    assert found.compute_seconds == pytest.approx(1.5)
    assert found.memory_seconds == pytest.approx(1.0)
    assert found.collective_seconds == pytest.approx(3e9 / 164e9)
    assert found.bound == "compute"
    assert found.mfu == pytest.approx(1 / 1.5)
