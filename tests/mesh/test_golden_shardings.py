"""Every parameter of the papers' models and of every formulation, as listed in `shardings/`: its shape, its place on a
mesh, that of its moments, and whether weight decay leaves it alone.

After a change that is meant, `HEADJAX_UPDATE_LISTINGS=1 pytest tests/mesh/test_golden_shardings.py` writes the
listings anew; read their difference.
"""

import os
from pathlib import Path

import pytest

import headjax
from headjax.initialization import ModelSource
from headjax.mesh.rules import ShardingConfig, moment_shardings, shardings
from headjax.training.config import decayed
from tests import tiny
from tests.nn.formulations import FORMULATIONS, WIDTH
from tests.tiny import flatten

LISTINGS = Path(__file__).with_name("shardings")
PAPERS = Path(__file__).resolve().parents[2] / "configs" / "papers"
ARGUMENTS = {"bert": "size=base,deep", "collaborative_nmt": "collaborative", "collaborative_deit": "collaborative"}
NAMES = [*sorted(path.stem for path in PAPERS.glob("*.py") if path.stem != "common"), "formulations"]


def tensors_of(name):
    """What a paper's model declares, or an attention layer of every formulation."""
    if name == "formulations":
        return {each: tiny.weights(attention, WIDTH, WIDTH) for each, attention in FORMULATIONS.items()}
    config = headjax.load_config(f"{PAPERS / name}.py:{ARGUMENTS.get(name, '')}")
    return ModelSource.of(config.to_dict()).architecture().tensors()


def listing(name):
    """One line a tensor: its shape, its placement, that of its moments where they lie elsewhere (ZeRO), its decay."""
    tensors = tensors_of(name)
    weights = flatten(decayed(tensors))
    mesh = headjax.MeshConfig(data=2, fsdp=2, model=2).build()
    options = ShardingConfig(misfits="replicate", optimizer="data")
    placed = flatten(shardings(tensors, mesh, sharding=options))
    moments = flatten(moment_shardings(tensors, mesh, options))
    lines = []
    for path, tensor in flatten(tensors).items():
        spec, moment = (tuple(places[path].spec) for places in (placed, moments))
        rest = f", moments {show(moment)}" * (moment != spec) + ", no decay" * (not weights[path])
        lines.append(f"{path} {list(tensor.shape)} {show(spec)}{rest}")
    return "\n".join(lines) + "\n"


def show(spec):
    return "(" + ", ".join("-" if axis is None else axis for axis in spec) + ")"


@pytest.mark.parametrize("name", NAMES)
def test_parameters_lie_where_the_listing_says(name):
    file, found = LISTINGS / f"{name}.txt", listing(name)
    if os.environ.get("HEADJAX_UPDATE_LISTINGS"):
        file.write_text(found)
    listed = file.read_text() if file.exists() else ""
    assert found == listed, f"{file.name} differs; if that is meant, run this file with HEADJAX_UPDATE_LISTINGS=1"


def test_no_listing_is_left_over():
    assert {path.stem for path in LISTINGS.glob("*.txt")} == set(NAMES)
