"""Experiments: shapes of models, heads that are needed by construction, and methods of shrinking."""

import numpy as np
import pytest

import headjax
from headjax.shrinking.choice import QUANTITIES, Option, Prices
from results.experiments import design, shrink
from results.experiments.ground_truth import SETTINGS, auroc, induction_model, repetitions
from results.experiments.ground_truth import measure as measure_orders


def test_losses_after_equal_steps_flops_and_time():
    """The deep model takes twice the time of the other, and 4/3 of the FLOPs."""
    steps = np.arange(100, 201, 25)
    costs = {"base": (0.1, 300.0), "deep": (0.2, 400.0)}
    runs = [design.Run(name, "0", steps, 5 - 0.01 * steps, *cost) for name, cost in costs.items()]
    found = {(row.setting, row.metric): row.value for row in design.measure(runs)}
    for metric, after in (("steps", 200), ("flops", 150), ("time", 100)):
        assert found["base", f"loss at equal {metric}"] == pytest.approx(3.0)
        assert found["deep", f"loss at equal {metric}"] == pytest.approx(5 - 0.01 * after)


@pytest.mark.parametrize("name", ["quiet", "certain", "saturated"])
def test_the_two_heads_and_no_others_are_needed(name):
    model, needed = induction_model(SETTINGS[name], seed=0)
    batch = repetitions(16, seed=0)
    wanted = batch["labels"][:, 1:]

    def right(one) -> float:
        predicted = np.asarray(one(batch).logits)[:, :-1].argmax(axis=-1)
        return float((predicted == wanted)[wanted >= 0].mean())

    others = [head for head in headjax.all_heads(model.config) if head not in needed]
    assert right(model) == right(headjax.prune(model, others)) == 1.0
    for head in needed:
        assert right(headjax.prune(model, [head])) < 0.5


def test_the_oracle_ranks_them_first_and_a_reversed_order_last():
    (row,) = measure_orders(["ablation"], ["quiet"], seeds=1)
    assert row.value == 1.0
    heads = [headjax.HeadId("decoder", 0, head) for head in range(4)]
    assert auroc(heads, frozenset(heads[:1])) == 0.0
    assert auroc(heads, frozenset(heads[1:2])) == pytest.approx(1 / 3)


def test_methods_of_shrinking_take_their_own_options_alone():
    own = (Option("encoder/0", parameters=10.0), *(Option("encoder/0", kind, kind, damage=damage, parameters=cost)
           for kind, damage, cost in (("heads", 3.0, 4.0), ("sharing", 2.0, 6.0), ("both", 1.0, 5.0))))  # fmt: skip
    table = Prices({"encoder/0": own}, dict.fromkeys(QUANTITIES, 0.0), "kl")

    def chosen(method, most):
        found = shrink.choice_of(method, table, {"parameters": most})
        return found if found is None else found.options["encoder/0"].kind

    assert [chosen(method, 5.0) for method in shrink.METHODS] == ["both", "both", "heads", None, None]
    assert chosen("sharing", 6.0) == "sharing"
