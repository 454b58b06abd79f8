"""The tables of sweeps show the raw results that are kept beside the pages."""

import json
import re
from functools import partial

import numpy as np
import pytest

from benchmarks.operations import Shape
from docs import composition, measures, scaling
from docs.claim_list import CLAIMS
from docs.measures import Found
from docs.plot_list import PLOTS, draw
from docs.removals import table as removals_table
from docs.stacks import (
    ablations_table,
    attention_matters,
    correlations,
    later_is_cheaper,
    most_can_go,
    needed_more,
    one_is_enough,
    settles,
    training_table,
    transfer_table,
    transfers,
)
from docs.stacks import removals_table as stacks_table
from docs.tables import (
    PAGES,
    RAW,
    TABLES,
    conversions_table,
    grid_table,
    keep,
    page,
    sharing_table,
)


def test_the_pages_show_the_raw_results():
    texts = [file.read_text(encoding="utf-8") for file in PAGES]
    marks = [mark for text in texts for mark in re.findall(r"<!-- (\w+): (\w+) -->", text)]
    assert [name for kind, name in marks if kind == "plot"] == list(PLOTS)
    assert [name for kind, name in marks if kind == "claims"] == ["all", *(claim.name for claim in CLAIMS)]
    named = [f"{kind}_{name}.json" for kind, name in marks if kind not in ("plot", "claims")]
    kept = [file.name for kind in TABLES for file in RAW.glob(f"{kind}_*.json")]
    assert sorted(named) == sorted(kept)
    for text in texts:
        assert page(text) == text


def test_plots_are_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.plot_list.RAW", tmp_path)
    draw()
    assert {file.stem for file in RAW.glob("*.png")} == set(PLOTS)
    for name in PLOTS:
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert (RAW / f"{name}.png").stat().st_size > 10_000


@pytest.fixture
def sweeps(tmp_path):
    def trial(repair, draw, value, agreement, p_value):
        test = {"difference": value - 0.8, "p_value": p_value, "low": 0.0, "high": 0.0}
        return {
            "order": "importance",
            "remove": "50%",
            "draw": draw,
            "stacks": [],
            "repair": repair,
            "metrics": {"accuracy": value},
            "agreement": agreement,
            "against_none": None if repair == "none" else test,
            "order_seconds": 3.0,
            "repair_seconds": 7.0,
        }

    head = {"baseline": {"accuracy": 0.9}, "headline": "accuracy", "examples": 1000, "agreement": "kl"}
    head |= {"test": "McNemar's exact test", "evaluation": {}}
    first = [trial("none", 0, 0.8, 0.5, 1.0), trial("reconstruct", 0, 0.85, 0.3, 0.01)]
    second = [*first, trial("none", 1, 0.8, 0.5, 1.0), trial("reconstruct", 1, 0.87, 0.6, 0.3)]
    files = []
    for number, removals in enumerate((first, second)):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(head | {"removals": removals}))
    return files


def test_a_table_has_means_ranges_and_counts(sweeps, tmp_path, monkeypatch):
    monkeypatch.setattr("docs.tables.RAW", tmp_path)
    keep("mine", [str(file) for file in sweeps])
    made = removals_table(json.loads((tmp_path / "removals_mine.json").read_text()))
    assert "Accuracy on 1,000 examples; whole model 0.9000." in made
    assert "| importance | none | 0.8000 ± 0.0000 |" in made
    assert "| importance | W_O | 0.8600 ± 0.0100 |" in made
    assert (
        "W_O: agrees better with the whole model than no repair in 1 of 2 cells; accuracy better in 1 and worse" in made
    )
    assert "Orders take importance 3 s" in made
    assert (
        page("a\n<!-- removals: mine -->\nold\n<!-- end -->\nb")
        == f"a\n<!-- removals: mine -->\n\n{made}\n\n<!-- end -->\nb"
    )


def test_several_models_have_means_with_intervals(tmp_path, monkeypatch):
    def sweep(number, order, whole, lost):
        test = {"difference": -lost, "p_value": 0.5, "low": -1.0, "high": 1.0}
        trial = {"order": order, "remove": "50%", "draw": 0, "stacks": [], "repair": "none", "agreement": 0.1}
        trial |= {"metrics": {"accuracy": whole - lost}, "against_whole": test, "against_none": None}
        trial |= {"order_seconds": 30.0, "repair_seconds": 0.0}
        head = {"headline": "accuracy", "examples": 872, "agreement": "kl", "test": "a test", "evaluation": {}}
        file = tmp_path / f"{number}.json"
        file.write_text(
            json.dumps(head | {"baseline": {"accuracy": whole}, "removals": [trial], "command_seconds": 60.0})
        )
        return str(file)

    monkeypatch.setattr("docs.tables.RAW", tmp_path)
    monkeypatch.setattr("docs.measures.RAW", tmp_path)
    models = [(0.9, 0.02), (0.8, 0.01), (0.85, 0.03)]
    files = [sweep(f"{order}{i}", order, *each) for order in ("importance", "random") for i, each in enumerate(models)]
    kept = json.loads(keep("mine", files).read_text())
    assert [len(model["removals"]) for model in kept["models"]] == [2, 2, 2]  # two commands, one model
    made = removals_table(kept)
    assert "whole model 0.8500 (0.7258 to 0.9742). Means over 3 models" in made
    assert "| importance | none | 0.8300 (0.7162 to 0.9438) |" in made
    lost = partial(measures.loss, "removals_mine", "50%", "none", order="importance")
    assert lost(0.05) == Found("2.00 (-0.48 to 4.48) points lost, 3 models", "held")
    assert lost(0.01).verdict == "not decided"
    assert lost(-0.01).verdict == "did not hold"
    assert measures.command_time("removals_mine") == "6.0 min, 6 commands"
    assert measures.removal_time("removals_mine") == "3.0 min of orders and repairs"


def test_stacks_of_several_models_stand_side_by_side(tmp_path, monkeypatch):
    def sweep(number, stack, whole, value):
        trial = {"order": "importance", "remove": "50%", "draw": 0, "stacks": [stack], "repair": "none"}
        removals = [trial | {"metrics": {"perplexity": value}}]
        head = {"headline": "perplexity", "examples": 1000, "baseline": {"perplexity": whole}}
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(head | {"removals": removals}))
        return str(file)

    for module in ("docs.stacks.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    found = [("encoder", 5.0, 6.0), ("cross", 5.0, 10.0), ("encoder", 4.0, 6.0), ("cross", 4.0, 16.0)]
    file = keep("mine", [sweep(number, *each) for number, each in enumerate(found)])
    made = stacks_table(json.loads(file.read_text()))
    assert "1,000 examples, mean of 2 models (95 % interval), of which the whole ones have 4.00 to 5.00." in made
    assert "| encoder | 1.35 (-0.56 to 3.26) |" in made  # t of one degree of freedom is 12.7
    assert "| cross | 3.00 (-9.71 to 15.71) |" in made
    claimed = needed_more("stacks_mine", "cross", "encoder", "50%")
    assert claimed == Found(
        "perplexity times 3.00 against 1.35, ratio 2.11 (0.11 to 41.75), 2 seeds, p = 0.19", "not decided"
    )


def test_attention_matters_where_perplexity_per_word_at_least_doubles_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr("docs.measures.RAW", tmp_path)
    values = [("100%", 30.0), ("50%", 11.0)]
    models = [
        {
            "baseline": {"word_perplexity": whole},
            "removals": [
                {"stacks": [], "remove": share, "metrics": {"word_perplexity": value}} for share, value in values
            ],
        }
        for whole in (10.0, 12.0)
    ]
    (tmp_path / "stacks_mine.json").write_text(json.dumps({"models": models}))
    assert attention_matters("stacks_mine", 2.5) == Found("3 (0 to 6) times the perplexity per word, 2 seeds", "held")
    assert attention_matters("stacks_mine", 2.6).verdict == "did not hold"


def test_ablations_are_counted_by_stack_and_layer(tmp_path, monkeypatch):
    each = {"encoder/0/0": (0.0, 1.0), "encoder/0/1": (0.4, 0.001), "cross/0/0": (1.0, 0.001), "cross/0/1": (-1.0, 0.0)}
    alone = {"encoder/0/0": (2.0, 0.5), "encoder/0/1": (3.0, 0.001), "cross/0/0": (4.0, 0.0), "cross/0/1": (1.0, 0.0)}

    def mode(found):
        effect, p_value = ({head: pair[i] for head, pair in found.items()} for i in (0, 1))
        return {"baseline": {"perplexity": 4.0}, "effect": effect, "p_value": p_value}

    for module in ("docs.stacks.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    made = tmp_path / "ablate.json"
    modes = {"each": mode(each), "all-but-one": mode(alone)}
    told = {"metric": "perplexity", "test": "a test", "command_seconds": 2.0}
    made.write_text(json.dumps({"modes": modes, "evaluation": {"task": "mine", "examples": 1000}} | told))
    table = ablations_table(json.loads(keep("mine", [str(made)] * 2).read_text()))
    assert "Over 2 models, whose perplexity is 4 to 4 on 1,000 examples; perplexities over the whole model's" in table
    assert measures.command_time("ablations_mine") == "4 s, 2 commands"
    assert "| encoder | 2 of 4 | 1.050 (1.100) | 0 of 2 | 1.500 (1.500) |" in table
    assert "| cross | 2 of 4 | 1.000 (1.250) | 2 of 2 | 1.250 (1.250) |" in table
    number = "4 of 8 heads worse; perplexity times 1.050 (median), 1.250 (most)"
    assert most_can_go("ablations_mine") == Found(number, "did not hold")
    number = "2 of 4 layers worse; perplexity times 1.375 (median), 1.500 (most)"
    assert one_is_enough("ablations_mine") == Found(number, "did not hold")


def test_ablations_of_a_classifier_count_points(tmp_path, monkeypatch):
    for module in ("docs.stacks.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    effect = {"encoder/0/0": -0.02, "encoder/0/1": 0.01, "encoder/0/2": -0.001}
    p_value = {"encoder/0/0": 0.001, "encoder/0/1": 0.001, "encoder/0/2": 0.5}
    mode = {"baseline": {"accuracy": 0.9}, "effect": effect, "p_value": p_value}
    told = {"metric": "accuracy", "test": "McNemar's exact test", "command_seconds": 1.0}
    made = tmp_path / "ablate.json"
    told |= {"evaluation": {"task": "sst2", "examples": 872}}
    made.write_text(json.dumps({"modes": {"each": mode, "all-but-one": mode}} | told))
    table = ablations_table(json.loads(keep("mine", [str(made)]).read_text()))
    assert "Over 1 models, whose accuracy is 0.9 to 0.9 on 872 examples; positive where it gets worse" in table
    assert "| encoder | 1 of 3 | 0.10 (2.00) | 0 of 1 | -1.00 (-1.00) |" in table
    assert most_can_go("ablations_mine") == Found("1 of 3 heads worse; 0.10 (median), 2.00 (most) points lost", "held")


def test_effects_on_two_data_sets_correlate_or_not(tmp_path, monkeypatch):
    def ablation(number, task, baseline, changes):
        effect = {f"encoder/0/{head}": change for head, change in enumerate(changes)}
        each = {"baseline": {"perplexity": baseline}, "effects": {"loss": effect}}
        told = {"metric": "perplexity", "evaluation": {"task": task, "examples": 10 * number}, "command_seconds": 1.0}
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps({"modes": {"each": each}} | told))
        return str(file)

    for module in ("docs.stacks.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    sets = [("own", 2.0), ("data/near", 4.0), ("data/far", 8.0)]
    effects = [np.log([1.2, 1.4, 1.6, 1.8]), np.log([1.4, 1.8, 2.2, 2.6]), np.log([1.1, 1.1, 0.9, 0.9])]
    files = [ablation(i + 1, *each, effects[i // 2]) for i, each in enumerate(one for one in sets for _ in range(2))]
    found = json.loads(keep("mine", files).read_text())
    table = transfer_table(found)
    assert "Pearson's r over 4 heads, mean of 2 models" in table
    assert "| own | 10 | 2 |  |  |\n| near | 30 | 4 | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) |\n" in table
    assert "| far | 50 | 8 | -0.89 (-0.89 to -0.89) | -0.89 (-0.89 to -0.89) |" in table
    apart = {"x/0": 1.1, "x/1": 1.2, "y/0": 2.1, "y/1": 2.2}, {"x/0": 1.2, "x/1": 1.1, "y/0": 2.2, "y/1": 2.1}
    stacks = {"models": [{task: {"ratios": each} for task, each in zip(("own", "other"), apart, strict=True)}]}
    assert (
        correlations(stacks, "other")[0][0]
        > 0.9
        > correlations(stacks, "other", within=True)[0][0]
        == pytest.approx(-1)
    )
    assert transfers("transfer_mine", "near").verdict == "held"
    assert transfers("transfer_mine", "far").verdict == "did not hold"


def test_checkpoints_stand_by_their_step(tmp_path, monkeypatch):
    for module in ("docs.stacks.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    files = []
    for run, late in enumerate((1.1, 1.2, 1.15)):
        snapshots = [
            {
                "step": step,
                "baseline": 10.0 * each,
                "agreement": each / 2,
                "curve": [{"fraction": 0.25, "removed": 2, "seed": 0, "value": 10.0 * each * ratio}],
            }
            for step, each, ratio in ((100, 1.0, late + 0.5), (200, 2.0, late))
        ]
        files.append(tmp_path / f"{run}.json")
        files[-1].write_text(json.dumps({"examples": 1000, "snapshots": snapshots}))
    table = training_table(json.loads(keep("mine", [str(file) for file in files]).read_text()))
    assert "| step | all heads | without 25% | order as at the end |" in table
    assert (
        "| 100 | 10.0 | 1.65 (1.53 to 1.77) | 0.50 (0.50 to 0.50) |\n| 200 | 20.0 | 1.15 (1.03 to 1.27) | 1.00" in table
    )
    found = later_is_cheaper("training_mine", "25%")
    assert found.verdict == "held"
    told = "perplexity times 1.65 at step 100, 1.15 at step 200, ratio 0.70 (0.67 to 0.72), 3 seeds, p = "
    assert found.number.startswith(told)
    assert settles("training_mine").verdict == "did not hold"  # half of the training is the first checkpoint
    assert settles("training_mine", least=0.5).verdict == "did not hold"  # at its start already
    for file in files:
        snapshots = json.loads(file.read_text())["snapshots"]
        snapshots.insert(0, snapshots[0] | {"step": 50, "agreement": 0.2})
        file.write_text(json.dumps({"examples": 1000, "snapshots": snapshots}))
    keep("mine", [str(file) for file in files])
    assert settles("training_mine", least=0.5).verdict == "held"
    assert "above 0.5 from step 100 on (3 seeds)" in settles("training_mine", least=0.5).number


def test_orders_of_surgery_are_compared_at_equal_parameters(tmp_path, monkeypatch):
    for module in ("docs.composition.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    after = {"whole": 10.0, "prune": 12.0, "convert": 13.0, "prune-convert": 11.0, "convert-prune": 11.001}
    for model in range(3):
        for order, perplexity in after.items():
            folder = tmp_path / "runs" / str(model) / ("100" if order == "whole" else "90")
            folder.mkdir(parents=True, exist_ok=True)
            cut = 0.9 if order != "whole" else 1.0
            inspected = {"parameters": int(1000 * cut), "heads": 8, "flops": int(2000 * cut)}
            noise = 1 + model * (0.001 if order == "prune-convert" else 0.0011)
            measured = {"metrics_before": {"perplexity": 20.0}, "metrics": {"perplexity": perplexity * noise}}
            (folder / f"{order}.json").write_text(json.dumps({**measured, "evaluation": {"examples": 1000}}))
            (folder / f"{order}-inspect.json").write_text(json.dumps(inspected))
            if order != "whole":
                (folder / f"{order}-compare.json").write_text(json.dumps({"speed_up": 1.25}))
    found = json.loads(composition.keep("mine", tmp_path / "runs").read_text())
    table = composition.table(found)
    assert "Perplexity on 1,000 examples, mean of 3 models" in table
    assert "| nothing | 8 | 100.0 | 100.0 | 100 | 20.00 (20.00 to 20.00) | 10.01 (9.98 to 10.04) |" in table
    assert "| heads removed, then keys shared | 8 | 90.0 | 90.0 | 80 | 20.00 (20.00 to 20.00) | 11.01 (" in table
    alone = composition.better("composition_mine", "90", "prune-convert", ("prune", "convert"))
    assert alone.number.startswith("perplexity 11.01 against 12.01, ratio 0.917 (0.916 to 0.917), 3 models, p = ")
    assert alone.verdict == "held"
    assert composition.better("composition_mine", "90", "prune-convert", ("convert-prune",)).verdict == "not decided"
    assert composition.better("composition_mine", "90", "convert", ("prune",)).verdict == "did not hold"


def test_conversions_stand_by_the_cache_that_they_save(tmp_path, monkeypatch):
    def trial(to, cache, value, variant="plain"):
        test = None if to == "original" else {"difference": 0.1, "p_value": 0.2 if value < 11 else 0.001}
        metrics = {"perplexity": value}
        return {"to": to, "variant": variant, "cache": cache, "metrics": metrics, "against_original": test}

    trials = [
        trial("original", 256, 10.0),
        trial("latent:error=weights,rank=128", 129, 12.0),
        trial("latent:rank=128", 129, 10.5, "calibrated"),
        trial("latent:rank=32", 33, 11.25, "calibrated"),
        trial("grouped:kv_heads=2,pooling=mean", 128, 40.0),
    ]
    monkeypatch.setattr("docs.tables.RAW", tmp_path)
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"headline": "perplexity", "examples": 7, "test": "a test", "trials": trials}))
    assert keep("mine", [str(sweep)]).name == "conversions_mine.json"
    made = conversions_table(json.loads((tmp_path / "conversions_mine.json").read_text()))
    assert "the original has 10.00 and caches 256 numbers a token. 7 examples; 3 of 4 conversions differ" in made
    assert "| conversion | variant | 50 % | 87.5 % |" in made
    assert "| `latent:error=weights` | plain | 12.00 |  |" in made
    assert "| `latent` | calibrated | 10.50 | 11.25 |" in made
    assert "| `grouped:pooling=mean` | plain | 40.00 |  |" in made


def test_an_encoders_conversions_stand_one_by_one(tmp_path, monkeypatch):
    def trial(to, parameters, value, test):
        numbers = {"parameters": parameters, "logit_error": 0.25, "cosine": 0.5, "metrics": {"accuracy": value}}
        return {"to": to, "variant": "plain", "cache": 2, "against_original": test} | numbers

    test = {"difference": -0.02, "p_value": 0.031, "low": -0.04, "high": -0.001}
    trials = [trial("original", 1234, 0.9, None), trial("collaborative:shared_dim=8", 1000, 0.88, test)]
    monkeypatch.setattr("docs.tables.RAW", tmp_path)
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"headline": "accuracy", "examples": 7, "test": "a test", "trials": trials}))
    assert keep("mine", [str(sweep)]).name == "sharing_mine.json"
    made = sharing_table(json.loads((tmp_path / "sharing_mine.json").read_text()))
    assert "Accuracy on 7 examples; differences from the original by a test." in made
    assert "| original | | 1,234 | 0 | 1 | 0.9000 | | |" in made
    row = "| plain | 1,000 | 0.250 | 0.500 | 0.8800 | -0.0200 (-0.0400 to -0.0010) | 0.031 |"
    assert f"| `collaborative:shared_dim=8` {row}" in made


def test_conversions_of_several_models_have_means_and_claims_their_intervals(tmp_path, monkeypatch):
    def sweep(seed, whole, lost):
        test = {"difference": -lost, "p_value": 0.5, "low": -1.0, "high": 1.0}
        numbers = {"variant": "plain", "parameters": 100, "logit_error": 0.2, "cosine": 0.9, "cache": 2}
        trials = [
            {"to": "original", "metrics": {"accuracy": whole}, "against_original": None} | numbers,
            {"to": "gated", "metrics": {"accuracy": whole - lost}, "against_original": test} | numbers,
        ]
        head = {"headline": "accuracy", "examples": 7, "test": "a test", "command_seconds": 30.0}
        file = tmp_path / f"{seed}.json"
        file.write_text(json.dumps(head | {"trials": trials}))
        return str(file)

    for module in ("docs.tables.RAW", "docs.measures.RAW"):
        monkeypatch.setattr(module, tmp_path)
    models = ((0.9, 0.02), (0.8, 0.01), (0.85, 0.03))
    kept = keep("mine", [sweep(seed, *each) for seed, each in enumerate(models)])
    made = sharing_table(json.loads(kept.read_text()))
    assert "differences from the original means of 3 models, with the 95 % interval over them" in made
    assert "| `gated` | plain | 100 | 0.200 | 0.900 | 0.8300 | -0.0200 (-0.0448 to 0.0048) |\n" in f"{made}\n"
    found = measures.conversion("sharing_mine", "gated", "plain", 0.05)
    assert found == Found("2.00 (-0.48 to 4.48) points lost, 3 models", "held")
    assert measures.command_time("sharing_mine") == "1.5 min, 3 commands"


def test_a_grids_table_has_intervals_and_counts_diverged_runs(tmp_path, monkeypatch):
    def result(heads, seed, loss):
        rest = {"parameters": 1234, "steps": 5, "seconds": 2.0, "tokens_per_second": 9.0}
        outcome = {"diverged": "nan", "metrics": {}} if loss is None else {"diverged": None, "metrics": {"loss": loss}}
        return {"settings": {"heads": heads}, "seed": seed} | outcome | rest

    def grid(*results):
        return {"metric": "loss", "summaries": [], "results": results}

    files = [tmp_path / "one.json", tmp_path / "two.json"]
    files[0].write_text(json.dumps(grid(result("1", 0, 1.0), result("1", 1, 2.0))))
    files[1].write_text(json.dumps(grid(result("2", 0, None), result("2", 1, 3.0))))
    monkeypatch.setattr("docs.tables.RAW", tmp_path)
    keep("shapes", [str(file) for file in files])
    made = grid_table(json.loads((tmp_path / "grid_shapes.json").read_text())).splitlines()
    assert made[0] == "| heads | parameters | runs | loss | 95 % interval | seconds |"
    assert made[2] == "| 1 | 1,234 | 2 | 1.5000 | -4.8531 to 7.8531 | 2 |"
    assert made[3] == "| 2 | 1,234 | 1, 1 diverged | 3.0000 |  | 2 |"
    kept = tmp_path / "grid_shapes.json"
    files[0].write_text(json.dumps(grid(result("1", 1, 4.0), result("4", 0, 5.0))))
    keep("shapes", [str(kept), str(files[0])])  # further runs, one of them in place of an earlier one
    runs = json.loads(kept.read_text())["results"]
    cells = [(run["settings"]["heads"], run["seed"]) for run in runs]
    assert cells == [("1", 0), ("1", 1), ("2", 0), ("2", 1), ("4", 0)]
    assert runs[1]["metrics"]["loss"] == 4.0


def test_cost_curves_have_a_row_each_the_machine_and_a_picture(tmp_path, monkeypatch):
    def curve(power):
        seconds = [[float(x**power)] * 3 for x in (1, 2, 4)]
        return {"values": [1, 2, 4], "seconds": seconds, "flops": [1.0, 2.0, 4.0], "memory": [1000, 2000, 4000]}

    ours = {"base": Shape()._asdict(), "turns": 3, "curves": {"train step": {"batch": curve(1), "length": curve(2)}}}
    where = {"processor_model": "a processor", "instruction_sets": ["AVX2"], "usable_cores": 2}
    where |= {"load_before": 0.5, "load_after": 2.25, "versions": {"jax": "1.2"}}
    monkeypatch.setattr("docs.scaling.RAW", tmp_path / "measurements")
    (tmp_path / "measurements").mkdir()
    (tmp_path / "scaling.json").write_text(json.dumps({"ours": ours, "peer": {}, "ratio": 1.0, "machine": where}))
    file = keep("mine", [str(tmp_path / "scaling.json")])
    assert json.loads(file.read_text()) == {"ours": ours, "machine": where}
    assert (tmp_path / "scaling_mine.png").read_bytes().startswith(b"\x89PNG")
    made = scaling.table(json.loads(file.read_text()))
    assert "| train step | batch 1 to 4 | 1.00 s | 4.00 s | 1.00 | 1.00, 1.00 | 1.00 | as counted |" in made
    assert "| train step | length 1 to 4 | 1.00 s | 16.0 s | 2.00 | 2.00, 2.00 | 1.00 | faster than counted |" in made
    assert "a processor (AVX2), 2 cores, load 0.5 before and 2.2 after; jax 1.2." in made


@pytest.mark.parametrize(("metric", "verdict"), [("loss", "did not hold"), ("bleu", "held")])
def test_whether_runs_are_better_depends_on_the_metric(tmp_path, monkeypatch, metric, verdict):
    monkeypatch.setattr("docs.measures.RAW", tmp_path)
    offsets = {"one": (1.0, 1.1, 0.9), "other": (0.0, 0.0, 0.0)}
    results = [
        {"settings": {"kind": kind}, "seed": seed, "diverged": None, "metrics": {metric: 10 * seed + offset}}
        for kind, each in offsets.items()
        for seed, offset in enumerate(each)
    ]
    (tmp_path / "grid_mine.json").write_text(json.dumps({"metric": metric, "results": results}))
    one, other = (measures.Runs("mine", {"kind": kind}) for kind in offsets)
    assert measures.better(one, other).verdict == verdict  # seeds differ by 10, models of one seed by 1
    assert measures.no_worse(one, other, 0.5).verdict == verdict
    assert measures.no_worse(one, other, 2.0).verdict == "held"
    if metric == "bleu":
        assert measures.better(one, other).number.startswith(
            "11.00 against 10.00 BLEU, difference +1.00 (+0.75 to +1.25), 3 seeds"
        )
        assert measures.no_worse(other, one, 1.0).verdict == "not decided"
