"""The benchmark of large models: its directory, its peer, and its table."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks import streaming
from headjax.core.errors import HeadjaxError
from headjax.hub import from_huggingface
from headjax.models.model import load

FIELDS = streaming.SHAPE | {
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
    monkeypatch.setattr(streaming, "SHARD", 6000)
    monkeypatch.setattr(streaming, "BLOCK", 256)
    return tmp_path


def test_the_directory_is_a_model_in_several_files(folder):
    size = streaming.write_random(folder / "theirs", FIELDS)
    model = from_huggingface(folder / "theirs")
    assert size == 2 * model.num_parameters == sum(array.nbytes for array in jax.tree.leaves(model.params))
    assert {array.dtype for array in jax.tree.leaves(model.params)} == {jnp.dtype(jnp.bfloat16)}
    assert model.tokenizer is not None
    assert len(list((folder / "theirs").glob("model-*.safetensors"))) > 2
    table = np.asarray(model.params["embeddings"]["token"], np.float32)
    assert np.std(table) == pytest.approx(0.02, rel=0.05)
    assert np.mean(model.params["decoder"]["final_norm"]["scale"], dtype=np.float32) == pytest.approx(1.0, abs=0.05)
    streaming.write_random(folder / "again", FIELDS)
    for file in (folder / "theirs").iterdir():
        assert file.read_bytes() == (folder / "again" / file.name).read_bytes()


def test_the_peer_copies_every_byte(folder, capsys):
    streaming.write_random(folder / "theirs", FIELDS)
    streaming.move_and_report("copy", str(folder))
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] > 0
    assert found["peak_bytes"] > 0
    for file in (folder / "theirs").iterdir():
        assert file.read_bytes() == (folder / "copied" / file.name).read_bytes()


def test_import_and_export_keep_every_tensor(folder, capsys):
    streaming.write_random(folder / "theirs", FIELDS)
    for step in ("import", "export"):
        streaming.move_and_report(step, str(folder))
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["seconds"] > 0
    exported = load_file(folder / "exported" / "model.safetensors")
    shards = [load_file(file) for file in (folder / "theirs").glob("*.safetensors")]
    theirs = {name: array for shard in shards for name, array in shard.items()}
    assert exported.keys() == theirs.keys()
    for name, array in theirs.items():
        assert exported[name].tobytes() == array.tobytes()
    with pytest.raises(HeadjaxError, match=r"^export: exit code 2$"):
        streaming.move_and_report("export", str(folder))


@pytest.mark.whole
def test_pruning_chooses_among_all_heads(folder):
    streaming.write_random(folder / "theirs", FIELDS)
    for step in ("import", "prune"):
        streaming.move_and_report(step, str(folder))
    pruned = load(folder / "pruned")
    assert len(pruned.history[-1]["removed"]) == 2


def test_every_step_is_measured_and_shown(folder, monkeypatch):
    seconds = {"copy": [4.0, 2.0], "import": [3.0, 3.0], "export": [2.0, 2.0], "prune": [9.0]}

    def measured(function, step, name):
        assert function is streaming.move_and_report
        return {"seconds": seconds[step].pop(0), "peak_bytes": 2000}

    monkeypatch.setattr(streaming, "in_new_process", measured)
    monkeypatch.setattr(streaming.shutil, "rmtree", lambda *given, **options: None)
    found = streaming.run(fields=FIELDS, repeats=2)
    assert found["import"]["seconds_over_copy"] == 1.0
    assert found["prune"]["seconds"] == 9.0
    assert found["copy"]["peak_over_file"] == 2000 / found["file_bytes"]
    rows = streaming.table(found).rows
    assert [row[0] for row in rows] == ["copy", "import", "export", "prune"]
    assert all(map(np.isfinite, rows[1][1:]))
