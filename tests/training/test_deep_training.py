"""What deep models need of training: an initialisation that measures, records along depth, and an end to divergence."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from headjax.cli import main
from headjax.core.tensors import flatten
from headjax.data.examples import TokenBlocks
from headjax.models.model import load
from headjax.training.checkpoints import Checkpoints
from headjax.training.recording import read_metrics
from headjax.training.step import Trainer
from tests import tiny
from tests.closeness import assert_trees_equal
from tests.training.runs import MODEL, POST_NORM, after, config, constant, run, terminate, walk

LAYERS = POST_NORM["num_layers"]
RATE = 0.01
DEEP = {"model": POST_NORM, "steps": 5, "checkpoint_every": 2, "optimizer": constant(RATE)}
ADMIN = DEEP | {"initialization": {"kind": "admin"}}

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def data():
    return walk()


@pytest.fixture(scope="module")
def measured(data, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "admin"
    return run(workdir, data, **ADMIN), workdir


def test_the_model_directory_holds_the_omegas_and_how_they_were_found(measured):
    result, _ = measured
    model = load(result.path)
    assert model.config.residual == "scaled_post_norm"
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


def test_an_interrupted_run_keeps_its_initialisation(measured, data, tmp_path):
    whole, _ = measured
    assert not run(tmp_path, data, options=after(2, terminate), **ADMIN).finished
    continued = run(tmp_path, data, **ADMIN)
    assert continued.finished
    assert_trees_equal(continued.model.params, whole.model.params)
    assert continued.model.history[0] == whole.model.history[0]


class Exploding(TokenBlocks):
    """Blocks with tokens that the model does not know from some example on, in the place of an overflow."""

    good = 8 + 3 * 8
    """Examples of the batch that measures and of three steps."""

    def __getitem__(self, index):
        self.read = getattr(self, "read", 0) + 1
        tokens = self.tokens[index]
        return {"input_ids": tokens if self.read <= self.good else tokens + MODEL["vocab_size"]}


def test_a_run_that_diverges_stops_says_so_and_keeps_its_last_good_checkpoint(data, tmp_path, monkeypatch):
    monkeypatch.setattr("headjax.training.run.check_batch", lambda model, batch: batch)
    exploding = data._replace(train=Exploding(data.train.tokens.reshape(-1), 12))
    result = run(tmp_path, exploding, **ADMIN)
    assert (result.finished, result.path, result.steps) == (False, None, 2)
    good = tmp_path / "checkpoints" / "2"
    assert result.diverged == f"the loss of step 4 is nan; the last good checkpoint is {good}"
    assert not (tmp_path / "model").exists()
    assert read_metrics(tmp_path / "metrics.jsonl")[-1] == {"step": 4, "train/diverged": 1.0}
    settings = config(**ADMIN)
    model, mesh = settings.architecture(), settings.mesh.build(jax.devices()[:1])
    optimizer = settings.optimizer.build(model.tensors(), settings.steps)
    with Checkpoints(tmp_path, settings.keep_checkpoints) as checkpoints:
        assert checkpoints.latest == 2
        state, _ = checkpoints.restore(2, Trainer(model, optimizer, mesh).abstract_state())
    assert all(np.isfinite(array).all() for array in flatten(state.params).values())
    assert_trees_equal(state.params, result.model.params)


def test_the_command_says_that_a_loss_above_the_limit_is_divergence_and_exits_with_3(tmp_path, capsys):
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text(f"to be or not to be, that is question {number}\n" * 40)
    source = {"task": f"text:{tmp_path / 'text'}", "length": 8, "tokenizer": "bytes"}
    model, data = MODEL | {"vocab_size": 257}, source | {"validation_fraction": 0.3}
    text = tiny.config_file(model=model, data=data, diverged_above=1.0, optimizer=constant(RATE))
    (tmp_path / "diverging.py").write_text(text)
    arguments = ["train", "--config", str(tmp_path / "diverging.py"), "--workdir", str(tmp_path / "run"), "--json"]
    assert main([*arguments, str(tmp_path / "result.json")]) == 3
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["diverged"] is True
    assert result["model"] is None
    printed = " ".join(capsys.readouterr().out.split())
    assert "diverged: the loss of step 1 is 5.5" in printed
    assert "more than diverged_above=1; there is no good checkpoint" in printed
