"""What deep models need of training: an initialisation that measures, records along depth, and an end to divergence."""

from __future__ import annotations

import json

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_trees_equal
from tests.command_line import main
from tests.training.runs import MODEL, POST_NORM, after, constant, run, terminate, walk

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
    model = headjax.load(result.path)
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
