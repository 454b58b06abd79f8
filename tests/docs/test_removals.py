"""The tables on removals show the raw results that are kept beside the page."""

import json
import re

import pytest

from docs.removals import PAGE, RAW, keep, page, table


def test_the_page_shows_the_raw_results():
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"<!-- removals: (\w+) -->", text)
    assert sorted(f"removals_{name}.json" for name in named) == sorted(file.name for file in RAW.glob("removals_*"))
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
    monkeypatch.setattr("docs.removals.RAW", tmp_path)
    keep("mine", [str(file) for file in sweeps])
    made = table("mine")
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
