"""The parts that the config files of the papers' experiments share."""

from __future__ import annotations

import types

import pytest

from headjax import papers
from headjax.core.errors import ConfigError

MODEL = papers.bert(768, 12, papers.multi_head(12), 3072, papers.PRETRAINING)
TASK = {"task": "bert_pretraining", "length": 512}


def knobs(**changes):
    return types.SimpleNamespace(**({"data": "folder", "seed": 3, "smoke": False} | changes))


def test_an_experiment_is_a_run_on_prepared_data():
    run = papers.experiment(knobs(initialization="admin"), model=MODEL, task=TASK, every=7, steps=100).to_dict()
    assert run["data"] == {"kind": "task", "path": "folder", **TASK}
    assert (run["evaluate_every"], run["checkpoint_every"], run["steps"], run["seed"]) == (7, 7, 100, 3)
    assert run["initialization"] == {"kind": "admin"}
    assert run["model"] == MODEL


def test_a_rehearsal_divides_sizes_and_keeps_the_architecture():
    run = papers.experiment(knobs(smoke=True), model=MODEL, task=TASK, steps=100).to_dict()
    assert run["data"] == {"kind": "rehearsal", "task": "bert_pretraining"}
    assert (run["model"]["width"], run["model"]["num_layers"], run["steps"]) == (768 // 16, 2, 2)
    attention = run["model"]["attention"]
    assert (attention["num_heads"], attention["head_dim"]) == (12, 4)


def test_queries_and_keys_are_cut_among_heads_or_shared():
    cut = papers.cut_or_shared(8, 128, False, scale=0.125)
    assert (cut["kind"], cut["head_dim"], cut["scale"]) == ("multi_head", 16, 0.125)
    shared = papers.cut_or_shared(8, 128, True, scale=0.125, content_bias=True)
    assert (shared["kind"], shared["shared_dim"], shared["content_bias"]) == ("collaborative", 128, True)
    with pytest.raises(ConfigError, match=r"key_dim: "):
        papers.cut_or_shared(8, 100, False, scale=0.125)


def test_a_run_starts_from_its_recipe_or_from_a_directory():
    assert papers.started(MODEL, "") is MODEL
    output = papers.glue_output("stsb")
    assert output == {"kind": "regression"}
    assert papers.started(MODEL, "some/model", output) == {"kind": "directory", "path": "some/model", "task": output}


def test_schedules_and_steps():
    assert papers.adam(0.1, schedule="cosine", final=0.5)["schedule"] == {
        "kind": "cosine", "peak": 0.1, "warmup_steps": 0, "final": 0.5,
    }  # fmt: skip
    assert papers.bert_adam(1e-4)["weight_decay"] == 0.01
    assert papers.glue_steps("rte", epochs=3, batch_size=32) == 3 * 78
    with pytest.raises(ConfigError, match=r"task: "):
        papers.glue_steps("imdb", epochs=3, batch_size=32)
