"""The JSON of commands becomes rows of the table."""

import json
import math
from pathlib import Path

import numpy as np

from results import collect
from results.table import Row


def paired(value):
    return {"difference": value, "p_value": 0.5, "low": value - 1, "high": value + 1}


def one(found, seed="0", **fields):
    """The only row that has these values."""
    (row,) = [row for row in collect.rows_of(found, seed) if all(getattr(row, k) == v for k, v in fields.items())]
    return row


def test_removals_have_values_changes_and_times():
    trial = {"order": "importance", "remove": "50%", "draw": 1, "stacks": ["cross"], "repair": "none", "agreement": 0.1}
    trial |= {"metrics": {"perplexity": 9.0}, "against_whole": paired(0.2), "against_none": None}
    trials = [trial | {"order_seconds": 30.0, "repair_seconds": 1.0}]
    trials.append(trials[0] | {"repair": "reconstruct", "against_none": paired(-0.1)})
    found = {"headline": "perplexity", "agreement": "kl", "baseline": {"perplexity": 8.0}, "removals": trials}
    assert one(found, share="0%") == Row(seed="0", share="0%", metric="perplexity", value=8.0)._replace(
        **{name: one(found, share="0%")._asdict()[name] for name in ("low", "high", "p", "seconds")}
    )
    first = one(found, repair="none", metric="perplexity")
    assert (first.setting, first.draw, first.share, first.value, first.seconds) == ("cross", "1", "50%", 9.0, 31.0)
    assert one(found, repair="reconstruct", metric="perplexity").seconds == 1.0  # the order is counted once
    change = one(found, repair="none", metric="loss change")
    assert (change.value, change.low, change.high, change.p) == (0.2, -0.8, 1.2, 0.5)
    assert one(found, metric="loss gain").value == -0.1


def test_conversions_and_grids():
    trial = {"to": "latent:rank=2", "variant": "plain", "parameters": 3, "cache": 4, "logit_error": 0.5}
    trial |= {"metrics": {"accuracy": 0.9}, "against_original": paired(-0.01)}
    found = {"headline": "accuracy", "trials": [trial]}
    assert one(found, metric="accuracy").setting == "latent:rank=2"
    assert one(found, metric="accuracy change").value == -0.01
    runs = [
        {"settings": {"a": "1", "b": "2"}, "seed": 3, "diverged": None, "metrics": {"loss": 2.5}, "seconds": 9.0},
        {"settings": {"a": "1", "b": "2"}, "seed": 4, "diverged": "nan", "metrics": {}, "seconds": 1.0},
    ]
    row = one({"results": runs}, metric="loss")
    assert (row.setting, row.seed, row.value, row.seconds) == ("a=1,b=2", "3", 2.5, 9.0)
    assert one({"results": runs}, metric="diverged").seed == "4"


def test_ablations_checkpoints_and_cost_curves():
    each = {"baseline": {"accuracy": 0.9}, "effect": {"e/0/1": -0.1}, "p_value": {"e/0/1": 0.2}}
    found = {"metric": "accuracy", "modes": {"each": each | {"effects": {"loss": {"e/0/1": math.log(1.5)}}}}}
    assert one(found, metric="accuracy change", head="e/0/1").p == 0.2
    assert np.isclose(one(found, metric="ratio of exp(loss)").value, 1.5)
    snapshot = {"step": 100, "baseline": 4.0, "agreement": 0.5, "curve": [{"fraction": 0.4, "value": 6.0}]}
    assert one({"snapshots": [snapshot]}, share="40%", metric="perplexity ratio").value == 1.5
    curve = {"values": [1, 2, 4], "seconds": [[1.0, 1.0], [4.0, 2.0], [16.0, 4.0]], "flops": [1.0, 2.0, 4.0]}
    turns = {"ours": {"curves": {"train step": {"batch": curve}}}}
    assert np.isclose(one(turns, draw="0").value, 1.0)  # grows as the square, the FLOPs grow linearly
    assert np.isclose(one(turns, draw="1").value, 0.0, atol=1e-9)


def test_models_are_seeds_in_their_order_each_of_one_or_more_files(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "write", lambda name, rows: list(rows))
    files = []
    for number in range(3):
        trial = {"to": f"t{number}", "variant": "plain", "parameters": 1, "cache": 1, "logit_error": 0.0}
        trial |= {"metrics": {"accuracy": 0.5}, "against_original": None}
        files.append(str(tmp_path / f"{number}.json"))
        Path(files[-1]).write_text(json.dumps({"headline": "accuracy", "trials": [trial]}))
    rows = collect.collect("mine", [f"{files[0]},{files[2]}", files[1]])
    assert {(row.setting, row.seed) for row in rows} == {("t0", "0"), ("t1", "1"), ("t2", "0")}
    assert {row.seed for row in collect.collect("mine", files[:1])} == {""}
