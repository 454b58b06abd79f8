"""The tables of sweeps show the raw results that are kept beside the pages."""

import json
import re

import pytest

from docs.tables import PAGES, RAW, TABLES, conversions_table, keep, page, removals_table


def test_the_pages_show_the_raw_results():
    texts = [file.read_text(encoding="utf-8") for file in PAGES]
    named = [f"{kind}_{name}.json" for text in texts for kind, name in re.findall(r"<!-- (\w+): (\w+) -->", text)]
    named.remove("claims_all.json")  # made of all raw results
    kept = [file.name for kind in TABLES for file in RAW.glob(f"{kind}_*")]
    assert sorted(named) == sorted(kept)
    for text in texts:
        assert page(text) == text


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
