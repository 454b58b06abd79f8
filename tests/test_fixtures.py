"""What an earlier headjax wrote is read as it was: models, a run, prepared shards, run configs."""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import headjax
from headjax.core.serialize import from_data
from headjax.data.task import DataConfig
from headjax.training.config import train_config
from headjax.training.loop import train
from headjax.training.recording import read_metrics
from tests.closeness import assert_close, close_to
from tests.selected import first

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS = ("v1", "v2")
EXPECTED = {version: json.loads((FIXTURES / version / "expected.json").read_text()) for version in VERSIONS}
MODELS = [(version, name) for version in VERSIONS for name in EXPECTED[version]["models"]]
PREPARED = EXPECTED["v1"]["prepared"]
CONFIGS = json.loads((FIXTURES / "v1" / "configs.json").read_text())

PASS_SUMS = 2 * (4 * 8 + 2 * 2 + 4 + 2 * 16 + 8 + 16 + 2 * 8) + 257 + 3 * 16
"""Terms added up on the way through the stored run's model.

Two layers of width 8: projections, logits, output projection, softmax and context over 16 positions, feed-forward,
norms. The logits' softmax over 257 tokens and the mean over three texts of 16 tokens follow.
"""


EXTRACT: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11 before its fourth release has no filters, 3.12 and 3.13 warn without one."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of each version's files."""
    folders = {version: tmp_path_factory.mktemp(version) for version in VERSIONS}
    for version, folder in folders.items():
        with tarfile.open(FIXTURES / version / "files.tar.gz") as archive:
            archive.extractall(folder, **EXTRACT)
    return folders


@pytest.mark.parametrize("version, name", MODELS)
def test_a_model_directory_computes_what_it_did(version, name, written):
    expected = EXPECTED[version]["models"][name]
    model = headjax.load(written[version] / name)
    assert model.num_parameters == expected["parameters"]
    assert [entry["action"] for entry in model.history] == expected["history"]
    batch = {key: np.asarray(array, np.int32) for key, array in expected["batch"].items()}
    logits = np.asarray(model(batch).logits)
    assert_close(logits if logits.ndim == 2 else logits[:, -1], np.asarray(expected["logits"]), sums=200)


def test_a_model_directory_keeps_its_tokenizer(written):
    text = "A head that is gone."
    decoder = headjax.load(written["v1"] / "decoder").tokenizer
    assert decoder.encode([text])[0].tolist() == list(text.encode())
    assert headjax.load(written["v1"] / "pruned").tokenizer.vocab_size == 23


def test_a_model_directory_remembers_which_heads_were_pruned(written):
    layers = headjax.load(written["v1"] / "pruned").config.attentions()["encoder"]
    assert [tuple(layer.ids) for layer in layers] == [(0, 1, 2, 3), (1, 3), ()]


@pytest.mark.parametrize("version", first(1, VERSIONS))
def test_a_stopped_run_goes_on_to_the_same_losses(version, written, tmp_path, monkeypatch):
    expected = EXPECTED[version]["run"]
    shutil.copytree(written[version] / "run", tmp_path / "run")
    monkeypatch.chdir(written[version])  # the run's config names its text relative to this folder
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *arguments: devices)
    config = train_config(json.loads((tmp_path / "run" / "train_config.json").read_text()))
    result = train(config, tmp_path / "run")
    assert result.finished
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    losses = {str(record["step"]): record["train/loss"] for record in records if "train/loss" in record}
    assert losses.keys() == expected["losses"].keys()
    # Adam moves a parameter whose gradient is rounding alone by a whole step, but the loss does not depend on it then.
    since = (config.steps - expected["stopped_at"]) * 2 * PASS_SUMS
    assert losses == close_to(expected["losses"], sums=since)
    assert result.metrics["loss"] == close_to(expected["metrics"]["loss"], sums=since)
    history = result.model.history[-1]["data"]
    for name, value in expected["data"].items():  # counts may have come to those of then
        assert history[name] == (history[name] | value if isinstance(value, dict) else value), name


@pytest.mark.parametrize("name", PREPARED)
def test_prepared_shards_hold_the_same_examples(name, written):
    data = from_data(DataConfig, {"kind": "task", "path": str(written["v1"] / "prepared" / name)}).load()
    expected = PREPARED[name]
    for split in ("train", "validation"):
        source = getattr(data, split)
        assert len(source) == expected[split]["examples"]
        examples = [{key: np.asarray(array) for key, array in source[i].items()} for i in range(len(source))]
        assert {key: array.tolist() for key, array in examples[0].items()} == expected[split]["first"]
        found = {key: digest([example[key] for example in examples]) for key in examples[0]}
        assert found == expected[split]["arrays"]
    assert {key: data.info[key] for key in expected["info"]} == expected["info"]


def digest(arrays):
    """Type, shape and hash of some arrays as one."""
    together = np.stack(arrays)
    return [str(together.dtype), list(together.shape), hashlib.sha256(together.tobytes()).hexdigest()]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_runs_config_is_read_as_it_was_written(name):
    written = CONFIGS[name]
    config = train_config(written)
    assert config.start().config.attentions() if "directory" not in json.dumps(written["model"]) else config.model
    for field in ("batch_size", "steps", "seed", "accumulate"):
        assert getattr(config, field) == written[field]
