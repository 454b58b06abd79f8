"""What deep models need of training: an initialisation that measures, records along depth, and an end to divergence."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal

import jax
import numpy as np
import pytest

from headjax.cli import main
from headjax.core.errors import DamagedError
from headjax.core.tensors import flatten
from headjax.data.examples import TokenBlocks
from headjax.data.task import TaskData
from headjax.models.model import load
from headjax.models.residuals import ScaledPostNorm
from headjax.storage.files import DELETED
from headjax.training.checkpoints import Checkpoints, snapshots
from headjax.training.config import train_config
from headjax.training.depth import read_depth
from headjax.training.loop import train
from headjax.training.recording import read_metrics
from headjax.training.state import abstract_state, read_initialization

VOCABULARY = 24
LAYERS = 3

pytestmark = [pytest.mark.usefixtures("one_device"), pytest.mark.whole]


@pytest.fixture(scope="module")
def one_device():
    devices = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *arguments: devices)
        yield


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    tokens = np.cumsum(rng.integers(1, 3, size=900)) % VOCABULARY
    blocks = [TokenBlocks(part.astype(np.int32), 12) for part in (tokens[:600], tokens[600:])]
    return TaskData(None, *blocks, {"text": "a random walk"})


def config(peak=0.01, **changes):
    fields = {
        "model": {
            "kind": "language_model",
            "vocab_size": VOCABULARY,
            "max_length": 12,
            "width": 16,
            "num_layers": LAYERS,
            "attention": {"kind": "multi_head", "num_heads": 1, "head_dim": 8},
            "feed_forward": {"kind": "dense", "hidden": 8},
            "residual": {"kind": "post_norm"},
            "embedding_norm": {"kind": "layer_norm"},
            "initializer": {"kind": "fan_in"},
            "dropout": 0.1,
        },
        "data": {"kind": "language"},
        "batch_size": 8,
        "steps": 5,
        "optimizer": {"kind": "adamw", "schedule": {"kind": "constant_rate", "peak": peak}, "weight_decay": 0.0},
        "log_every": 1,
        "checkpoint_every": 2,
        "tensorboard": False,
    }
    return train_config(fields | changes)


ADMIN = {"initialization": {"kind": "admin"}, "diagnose_every": 2}


@pytest.fixture(scope="module")
def run(data, tmp_path_factory, one_device):
    workdir = tmp_path_factory.mktemp("runs") / "admin"
    return train(config(**ADMIN), workdir, data=data), workdir


def test_the_model_directory_holds_the_omegas_and_how_they_were_found(run):
    result, _ = run
    model = load(result.path)
    assert all(type(layer.residual) is ScaledPostNorm for layer in model.config.decoder.layers)
    initialized, trained = model.history
    assert (initialized["action"], initialized["kind"], initialized["batches"]) == ("initialize", "admin", 1)
    assert trained["action"] == "train"
    omega = initialized["omega"]["decoder"]
    assert len(omega) == 2 * LAYERS
    assert omega[0] == 1.0
    assert np.all(np.diff(omega) > 0)
    weights = model.params["decoder"][f"layers_0_{LAYERS - 1}"]
    learned = np.stack([weights[slot]["shortcut"] for slot in ("attention_residual", "feed_forward_residual")], 1)
    steps = np.abs(learned.reshape(2 * LAYERS, -1) - np.asarray(omega)[:, None])
    assert 0 < steps.max() <= 0.06  # 5 steps of Adam at a rate of 0.01


def test_checkpoints_have_the_architecture_that_the_initialisation_asks_for(run):
    result, workdir = run
    found = dict(snapshots(workdir))
    assert max(found) == result.steps
    assert {model.config for model in found.values()} == {result.model.config}
    for path, array in flatten(result.model.params).items():
        np.testing.assert_array_equal(flatten(found[result.steps].params)[path], array, err_msg=path)


def test_checkpoints_of_a_run_in_progress_are_read_and_nothing_is_touched(run, tmp_path):
    """The run deletes one while another process reads, and what it has moved out of the way is the run's to delete."""
    _, workdir = run
    folder = tmp_path / "checkpoints"
    shutil.copytree(workdir / "checkpoints", folder)
    shutil.copy(workdir / "train_config.json", tmp_path)
    steps = sorted(int(path.name) for path in folder.iterdir())
    assert len(steps) > 1
    (folder / DELETED / "1").mkdir(parents=True)
    reading = snapshots(tmp_path)
    assert next(reading)[0] == steps[0]
    shutil.rmtree(folder / str(steps[1]))
    assert [step for step, _ in reading] == steps[2:]
    assert (folder / DELETED / "1").is_dir()
    (folder / str(steps[0]) / "position" / "metadata").write_text("{")
    with pytest.raises(DamagedError, match="metadata"):
        list(snapshots(tmp_path))
    shutil.rmtree(folder)
    assert list(snapshots(tmp_path)) == []
    assert not folder.exists()


def test_an_interrupted_run_keeps_its_initialisation(run, data, tmp_path):
    whole, _ = run

    @contextlib.contextmanager
    def interrupted(title, total, unit):
        def update(done, values):
            if done == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        yield update

    assert not train(config(**ADMIN), tmp_path, data=data, progress=interrupted).finished
    continued = train(config(**ADMIN), tmp_path, data=data)
    assert continued.finished
    for path, array in flatten(whole.model.params).items():
        np.testing.assert_array_equal(flatten(continued.model.params)[path], array, err_msg=path)
    assert continued.model.history[0] == read_initialization(tmp_path)[0] == whole.model.history[0]


def test_depth_is_recorded_every_so_many_steps(run):
    _, workdir = run
    path = workdir / "metrics.jsonl"
    for measure, count in (("branch_variance", 2 * LAYERS), ("gradient_norm", LAYERS), ("update_ratio", LAYERS)):
        found = read_depth(path, measure, "decoder")
        assert list(found) == [2, 4]
        assert all(len(values) == count and min(values) > 0 for values in found.values())
    for values in read_depth(path, "stream_variance", "decoder").values():
        np.testing.assert_allclose(values, 1.0, atol=0.1)  # each is normalised, up to what the gains have learned


def test_update_ratios_and_gradients_are_what_the_step_did(data, tmp_path):
    """One step of Adam moves every number by the rate (its moments cancel), or not at all without a gradient."""
    rate = 0.01
    settings = config(rate, steps=1, diagnose_every=1)
    result = train(settings, tmp_path, data=data)
    model = settings.start().config
    before = model.initialize(jax.random.key(settings.seed))
    after = result.model.params
    weights = [model.decoder.unstack(params["decoder"]) for params in (before, after)]
    ratios = []
    for old, new in zip(*weights, strict=True):
        pairs = [(np.asarray(a), np.asarray(flatten(new)[path])) for path, a in flatten(old).items()]
        moved = math.sqrt(sum(np.sum((b - a) ** 2) for a, b in pairs))
        ratios.append(moved / math.sqrt(sum(np.sum(a**2) for a, _ in pairs)))
    (found,) = read_depth(tmp_path / "metrics.jsonl", "update_ratio", "decoder").values()
    np.testing.assert_allclose(found, ratios, rtol=1e-3)
    (gradients,) = read_depth(tmp_path / "metrics.jsonl", "gradient_norm", "decoder").values()
    record = next(record for record in read_metrics(tmp_path / "metrics.jsonl") if "train/gradient_norm" in record)
    assert 0 < math.hypot(*gradients) <= record["train/gradient_norm"] * (1 + 1e-5)


def explode(data, after):
    """The data with tokens that the model does not know from some example on: its loss is then not finite.

    No token that a model knows makes a loss that is not a number; such tokens stand in for an overflow, and the check
    that refuses them has to be off.
    """

    class Exploding(TokenBlocks):
        def __getitem__(self, index):
            self.read = getattr(self, "read", 0) + 1
            tokens = self.tokens[index]
            return {"input_ids": tokens if self.read <= after else tokens + VOCABULARY}

    return data._replace(train=Exploding(data.train.tokens.reshape(-1), 12))


@pytest.fixture(scope="module")
def diverged(data, tmp_path_factory, one_device):
    workdir = tmp_path_factory.mktemp("runs") / "diverged"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headjax.training.batches.check_batch", lambda model, batch: batch)
        return train(config(**ADMIN), workdir, data=explode(data, 8 + 3 * 8)), workdir


def test_a_run_that_diverges_stops_and_says_so(diverged):
    result, workdir = diverged
    assert not result.finished
    assert result.path is None
    assert result.diverged == (
        f"the loss of step 4 is nan; the last good checkpoint is {workdir / 'checkpoints' / '2'}"
    )
    assert not (workdir / "model").exists()
    records = read_metrics(workdir / "metrics.jsonl")
    assert records[-1] == {"step": 4, "train/diverged": 1.0}


def test_the_last_good_checkpoint_of_a_diverged_run_loads(diverged):
    result, workdir = diverged
    settings = config(**ADMIN)
    model, mesh = settings.start().config, settings.mesh.build()
    optimizer = settings.optimizer.build(model.tensors(), settings.steps)
    with Checkpoints(workdir, settings.keep_checkpoints) as checkpoints:
        assert checkpoints.latest == result.steps == 2
        state, _ = checkpoints.restore(2, abstract_state(model, optimizer, mesh))
    for path, array in flatten(state.params).items():
        assert np.isfinite(array).all(), path
        np.testing.assert_array_equal(flatten(result.model.params)[path], array, err_msg=path)


def test_a_loss_above_the_limit_is_divergence_too(data, tmp_path):
    result = train(config(diverged_above=1.5, steps=2), tmp_path, data=data)
    assert result.diverged.startswith("the loss of step 1 is ")
    assert result.diverged.endswith(", more than diverged_above=1.5; there is no good checkpoint")


def test_the_command_says_that_a_run_diverged_and_exits_with_3(tmp_path, capsys):
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text(f"to be or not to be, that is question {number}\n" * 40)
    (tmp_path / "diverging.py").write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config(arg=''):\n"
        "    return ConfigDict({\n"
        "        'model': {'kind': 'language_model', 'vocab_size': 257, 'max_length': 8, 'width': 16,\n"
        "            'num_layers': 1, 'attention': {'kind': 'multi_head', 'num_heads': 1, 'head_dim': 8},\n"
        "            'feed_forward': {'kind': 'dense', 'hidden': 8}},\n"
        f"        'data': {{'kind': 'language', 'path': {str(tmp_path / 'text')!r}, 'length': 8,\n"
        "            'tokenizer': 'bytes', 'validation_fraction': 0.3},\n"
        "        'batch_size': 8, 'steps': 2, 'diverged_above': 1.0, 'tensorboard': False,\n"
        "        'optimizer': {'kind': 'adamw', 'schedule': {'kind': 'constant_rate', 'peak': 0.01}},\n"
        "    })\n"
    )
    arguments = ["train", "--config", str(tmp_path / "diverging.py"), "--workdir", str(tmp_path / "run"), "--json"]
    assert main([*arguments, str(tmp_path / "result.json")]) == 3
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["diverged"] is True
    assert result["model"] is None
    assert "diverged: the loss of step 1 is 5.5" in capsys.readouterr().out
