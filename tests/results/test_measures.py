"""Numbers of claims from rows of the table, on made-up results."""

import math

import pytest

from results import table
from results.measures import ClaimRow, measure
from results.table import Row, read, select, write


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """A folder for made-up results of an experiment called `mine`."""
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    monkeypatch.setattr("results.measures.document", lambda: {"experiments": {"mine": {"examples": "872 sentences"}}})
    read.cache_clear()
    yield lambda *rows: write("mine", rows, tmp_path)
    read.cache_clear()


def claimed(**fields):
    return measure(ClaimRow(**{"setting": "s", "data": "mine", "metric": "m", "where": {}, "form": "number"} | fields))


def test_rows_are_read_as_they_were_written(results):
    row = Row("a=1,b=2", "0", "1", "importance", "50%", "none", "encoder/0/1", "m", 0.123456789, -1.0, 2.0, 0.5, 3.0)
    results(row, Row(metric="n", value=7.0))
    first, second = read("mine")
    assert first == row._replace(value=0.123457)
    assert second.metric == "n"
    assert math.isnan(second.low)
    assert select(read("mine"), {"setting": "a=1,b=2", "metric": "m"}) == [first]
    assert select(read("mine"), {"order": "random"}) == []


def test_losses_of_one_model_have_its_interval_over_examples(results):
    results(Row(metric="accuracy change", value=-0.02, low=-0.03, high=0.01))
    found = claimed(metric="accuracy change", form="points lost", most=3.0)
    assert found.text == "2.00 (-1.00 to 3.00) points lost, 872 sentences"
    assert found.verdict == "held"
    assert claimed(metric="accuracy change", form="points lost", most=2.9).verdict == "not decided"


def test_losses_of_several_models_cover_seeds_and_examples(results):
    results(*(Row(seed=str(seed), metric="c", value=-value) for seed, value in enumerate((0.01, 0.02, 0.03))))
    assert claimed(metric="c", form="points lost").text == "2.00 (-0.48 to 4.48) points lost, 3 seeds"
    results(
        *(
            Row(seed=str(seed), metric="c", value=-value, low=-value - 0.03, high=-value + 0.03)
            for seed, value in enumerate((0.01, 0.02, 0.03))
        )
    )
    read.cache_clear()
    found = claimed(metric="c", form="points lost")
    assert found.text == "2.00 (-1.89 to 5.89) points lost, 3 seeds x 872 sentences"  # root of 2.48^2 + 3^2


def test_runs_are_paired_by_seed_not_by_position(results):
    one = [Row("one", str(seed), metric="bleu", value=10.0 * seed + 1) for seed in (2, 0, 1)]
    other = [Row("other", str(seed), metric="bleu", value=10.0 * seed) for seed in (0, 1, 2, 3)]
    results(*one, *other)
    found = claimed(metric="bleu", where={"setting": "one"}, against={"setting": "other"}, form="BLEU", least=0.5)
    assert found.text == "11.00 against 10.00: +1.00 (+1.00 to +1.00) BLEU, 3 seeds"
    assert found.verdict == "held"


def test_typed_in_values_have_no_interval_and_decide_nothing(results):
    results(
        *(Row(kind, seed, metric="bleu", value=value) for kind, value in (("a", 9.1), ("b", 1.2)) for seed in "012")
    )
    found = claimed(
        metric="bleu", where={"setting": "a"}, against={"setting": "b"}, form="BLEU", least=0.0, rounded=True
    )
    assert found.text == "9.10 against 1.20: +7.90 BLEU, 3 seeds"
    assert found.verdict == "not decided"


def test_perplexities_are_compared_by_their_ratio_and_with_the_best_of_others(results):
    values = {"ours": 2.0, "good": 4.0, "bad": 8.0}
    results(*(Row(order=order, seed=seed, metric="m", value=value) for order, value in values.items() for seed in "01"))
    found = claimed(where={"order": "ours"}, against=({"order": "bad"}, {"order": "good"}), form="times", log=True)
    assert found.estimate[:3] == pytest.approx((0.5, 0.5, 0.5))


def test_a_difference_of_two_changes_is_no_surer_than_both(results):
    results(
        Row(order="a", metric="m", value=1.0, low=0.7, high=1.3),
        Row(order="b", metric="m", low=-0.4, high=0.4, value=0),
    )
    found = claimed(where={"order": "a"}, against={"order": "b"}).estimate
    assert (found.low, found.high) == pytest.approx((0.5, 1.5))


def test_shares_count_what_is_sure_and_what_is_possible(results):
    rows = [(-0.02, 0.0), (0.0, 0.005), (0.02, 0.03)]
    results(
        *(Row(head=f"e/{i}/0", metric="m", value=-(a + b) / 2, low=-b, high=-a) for i, (a, b) in enumerate(rows)),
        Row(head="e/3/0", metric="m", value=0.0),
    )
    found = claimed(measure="share", form="points lost", within=1.0, least=0.75, what="heads")
    assert found.text == "3 of 4 heads; surely 2, possibly 3"
    assert found.verdict == "not decided"
    assert claimed(measure="share", form="points lost", within=1.0, least=0.5).verdict == "held"
    assert claimed(measure="share", form="points lost", within=1.0, least=0.8).verdict == "did not hold"


def test_the_best_head_of_each_layer_is_chosen_on_other_examples_than_the_judged(results, tmp_path):
    judged = {"e/0/0": -0.1, "e/0/1": 0.0, "e/1/0": -0.3, "e/1/1": -0.2}
    results(*(Row(head=head, metric="m", value=value) for head, value in judged.items()))
    training = {"e/0/0": -0.01, "e/0/1": -0.02, "e/1/0": -0.02, "e/1/1": -0.01}
    write("training", (Row(head=head, metric="m", value=value) for head, value in training.items()), tmp_path)
    best = {"measure": "best share", "form": "points lost", "exact": True, "what": "layers", "within": 5.0}
    assert claimed(**best, chosen="training").text == "0 of 2 layers"
    assert claimed(**best, obstacle="chosen on the judged examples").text == "1 of 2 layers"
    with pytest.raises(ValueError, match="of their own"):
        claimed(**best)


def test_effects_on_two_data_sets_correlate(results):
    effects = {"own": (1.0, 2.0, 3.0, 4.0, 5.0), "near": (1.1, 2.0, 3.2, 3.9, 5.0)}
    results(
        *(
            Row(name, seed, head=f"e/0/{i}", metric="m", value=value)
            for name, values in effects.items()
            for seed in "01"
            for i, value in enumerate(values)
        )
    )
    found = claimed(measure="correlation", where={"setting": "own"}, against={"setting": "near"}, least=0.0)
    assert found.text.startswith("r = 1.00 (")
    assert found.text.endswith("2 seeds x 5 heads")
    assert found.verdict == "held"


def test_nothing_to_read_is_an_error(results):
    results(Row(metric="m", value=1.0))
    with pytest.raises(ValueError, match="other"):
        claimed(metric="other")
