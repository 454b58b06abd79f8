"""Experiments: shapes of models, heads that are needed by construction, and methods of shrinking."""

import json

import numpy as np
import pytest

from headjax.heads.head_id import HeadId, all_heads
from headjax.heads.pruning import prune
from headjax.shrinking.choice import QUANTITIES, Option, Table
from results.experiments import design, shrink
from results.experiments.ground_truth import SETTINGS, auroc, induction_model, repetitions
from results.experiments.ground_truth import measure as measure_orders
from results.grid import Cell

NARROW = {"heads": "4", "num_layers": "2"}
DEEP = {"heads": "1", "num_layers": "8"}


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of two models and two seeds, alike by steps; the deep one takes twice the time, 4/3 of the FLOPs."""
    monkeypatch.setattr(design, "_flops", lambda run: 400 if "num_layers=8" in run.name else 300)
    results = []
    for settings, seconds in ((NARROW, 0.1), (DEEP, 0.2)):
        for seed in (0, 1):
            run = tmp_path / Cell(settings, seed).name
            run.mkdir()
            losses = 5 - 0.01 * np.arange(1, 201) + 0.1 * seed
            records = [
                {"step": step, "train/loss": loss, "train/step_seconds": 9.0 if step == 1 else seconds}
                for step, loss in enumerate(losses, start=1)
            ]
            records.append({"step": 200, "validation/loss": 3.0})
            (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
            results.append({"settings": settings, "seed": seed})
    (tmp_path / "grid.json").write_text(json.dumps({"results": results}))
    return tmp_path


def test_losses_after_equal_steps_flops_and_time(grid):
    found = {
        (row.setting, row.seed, row.metric): row.value
        for row in design.measure(design.read_runs(grid / "grid.json", grid))
    }
    base, deep = "heads=4,num_layers=2", "heads=1,num_layers=8"
    assert found[base, "0", "step seconds"] == pytest.approx(0.1)  # compilation, in the first step, is no part of it
    for metric in ("steps", "flops", "time"):
        assert found[base, "0", f"loss at equal {metric}"] == pytest.approx(3.495)
        assert found[base, "1", f"loss at equal {metric}"] == pytest.approx(3.595)
    assert found[deep, "0", "loss at equal steps"] == pytest.approx(3.495)
    assert found[deep, "0", "loss at equal flops"] == pytest.approx(3.995)  # 150 of 200 steps
    assert found[deep, "0", "loss at equal time"] == pytest.approx(4.495)  # 100 steps


@pytest.mark.parametrize("name", ["quiet", "certain", "saturated"])
def test_the_two_heads_and_no_others_are_needed(name):
    model, needed = induction_model(SETTINGS[name], seed=0)
    batch = repetitions(16, seed=0)
    wanted = batch["labels"][:, 1:]

    def right(one) -> float:
        predicted = np.asarray(one(batch).logits)[:, :-1].argmax(axis=-1)
        return float((predicted == wanted)[wanted >= 0].mean())

    others = [head for head in all_heads(model.config) if head not in needed]
    assert right(model) == right(prune(model, others)) == 1.0
    for head in needed:
        assert right(prune(model, [head])) < 0.5


def test_the_oracle_ranks_them_first_and_a_reversed_order_last():
    (row,) = measure_orders(["ablation"], ["quiet"], seeds=1)
    assert row.value == 1.0
    heads = [HeadId("decoder", 0, head) for head in range(4)]
    assert auroc(heads, frozenset(heads[:1])) == 0.0
    assert auroc(heads, frozenset(heads[1:2])) == pytest.approx(1 / 3)


def test_methods_of_shrinking_take_their_own_options_alone():
    own = (Option("encoder/0", parameters=10.0), *(Option("encoder/0", kind, kind, damage=damage, parameters=cost)
           for kind, damage, cost in (("heads", 3.0, 4.0), ("sharing", 2.0, 6.0), ("both", 1.0, 5.0))))  # fmt: skip
    table = Table({"encoder/0": own}, dict.fromkeys(QUANTITIES, 0.0), "kl")

    def chosen(method, most):
        found = shrink.choice_of(method, table, {"parameters": most})
        return found if found is None else found.options["encoder/0"].kind

    assert [chosen(method, 5.0) for method in shrink.METHODS] == ["both", "both", "heads", None, None]
    assert chosen("sharing", 6.0) == "sharing"
