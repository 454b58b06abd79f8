"""The hub benchmark: its large directory, its steps, and its tables."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks import hub
from headjax.core.errors import HeadjaxError
from headjax.hub import from_huggingface
from headjax.models.encoder import Bert
from headjax.models.model import load
from headjax.models.sublayers import Dense
from tests import tiny

FIELDS = hub.LARGE | {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The benchmark's folder with a small directory in several files."""
    monkeypatch.setattr(hub, "SHARD", 3000)
    monkeypatch.setattr(hub, "BLOCK", 256)
    hub.write_random(tmp_path / "theirs", FIELDS)
    return tmp_path


def test_the_directory_is_a_model_in_several_files(folder):
    size = hub.write_random(folder / "again", FIELDS)
    model = from_huggingface(folder / "theirs")
    assert size == 2 * model.num_parameters == sum(array.nbytes for array in jax.tree.leaves(model.params))
    assert {array.dtype for array in jax.tree.leaves(model.params)} == {jnp.dtype(jnp.bfloat16)}
    assert model.tokenizer is not None
    assert len(list((folder / "theirs").glob("model-*.safetensors"))) > 2
    table = np.asarray(model.params["embeddings"]["token"], np.float32)
    assert np.std(table) == pytest.approx(0.02, rel=0.05)
    assert np.mean(model.params["decoder"]["final_norm"]["scale"], dtype=np.float32) == pytest.approx(1.0, abs=0.05)
    for file in (folder / "theirs").iterdir():
        assert file.read_bytes() == (folder / "again" / file.name).read_bytes()


def test_copy_import_and_export_keep_every_tensor(folder, capsys):
    for step in ("copy", "import", "export"):
        hub.report(step, str(folder))
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["seconds"] > 0
        assert found["peak_bytes"] >= found["before_bytes"] > 0
    for file in (folder / "theirs").iterdir():
        assert file.read_bytes() == (folder / "copied" / file.name).read_bytes()
    exported = load_file(folder / "exported" / "model.safetensors")
    shards = [load_file(file) for file in (folder / "theirs").glob("*.safetensors")]
    theirs = {name: array for shard in shards for name, array in shard.items()}
    assert exported.keys() == theirs.keys()
    for name, array in theirs.items():
        assert exported[name].tobytes() == array.tobytes()
    with pytest.raises(HeadjaxError, match=r"^export: "):
        hub.report("export", str(folder))


@pytest.mark.whole
def test_pruning_chooses_among_all_heads(folder):
    for step in ("import", "prune"):
        hub.report(step, str(folder))
    assert len(load(folder / "pruned").history[-1]["removed"]) == 2


def test_every_step_is_measured_and_shown(monkeypatch):
    seconds = {"headjax": [6.0, 8.0], "safetensors.numpy.load_file": [2.0, 2.0]}
    seconds |= {"copy": [4.0, 2.0], "import": [3.0, 3.0], "export": [2.0, 2.0], "prune": [9.0]}
    monkeypatch.setattr(hub, "REPEATS", 2)
    monkeypatch.setattr(hub, "LARGE_REPEATS", 2)
    small = Bert(attention=tiny.multi_head(2), feed_forward=Dense(16), vocab_size=50, width=8, num_layers=1)
    monkeypatch.setattr(hub, "bert", small.build)
    monkeypatch.setattr(
        hub,
        "in_new_process",
        lambda function, step, folder: {"seconds": seconds[step].pop(0), "peak_bytes": 2000, "before_bytes": 500},
    )
    found = hub.run(fields=FIELDS)
    assert not any(seconds.values())
    assert found.ratio == 3.5
    assert found.ours["seconds"] == 7.0
    assert found.peer["peak_over_file"] == 2000 / found.peer["file_bytes"]
    assert found.ours["large"]["import"]["seconds_over_copy"] == 1.0
    assert found.ours["large"]["prune"]["seconds"] == 9.0
    assert found.ours["large"]["copy"]["peak_over_file"] == 2000 / found.ours["large"]["file_bytes"]
    assert [[row[0] for row in table.rows] for table in found.tables] == [
        ["headjax", "safetensors.numpy.load_file"],
        ["copy", "import", "export", "prune"],
    ]
