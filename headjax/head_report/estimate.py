"""How long the measurements of the report will take."""

from __future__ import annotations

import time

from headjax.evaluation.task import evaluate_task
from headjax.head_report.curves import CurveConfig
from headjax.head_report.study import MODES, HeadStudy, curve_name, scored
from headjax.heads.head_id import all_heads
from headjax.heads.named_orders import LEARNED

BACKWARD, SUFFIX, SOLVED = 3.0, 0.55, 6.0
"""Forwards that a forward with its gradient costs, an ablation of one head (the layers behind it), and an example of a
reconstruction (both models, and sums of products)."""


def estimate(study: HeadStudy, *, second: bool = False) -> float:
    """Return about how many seconds the measurements take that are missing, by the time of one batch.

    Compilation, and the checkpoints of a run, come on top.
    """
    config, task = study.config, study.task
    examples = min(config.batch_size, task.count())
    times = []
    for _ in range(2):  # the first one compiles
        started = time.perf_counter()
        evaluate_task(study.model, task, None, examples, batch_size=config.batch_size, buckets=config.buckets)
        times.append(time.perf_counter() - started)
    costs = _forwards(study, second=second)
    return times[-1] / examples * sum(cost for name, cost in costs.items() if name not in study.kept.found)


def _forwards(study: HeadStudy, *, second: bool) -> dict[str, float]:
    """Return how many forwards of an example every measurement costs."""
    config, judged, few = study.config, study.task.count(), study.few.count()
    chosen, heads = scored(study.selection, config), len(all_heads(study.model.config))
    costs: dict[str, float] = {"baseline": judged, "scores": BACKWARD * chosen, "roles": few}
    costs |= dict.fromkeys(MODES, SUFFIX * heads * few)
    costs["best"] = SUFFIX * heads * min(chosen, few / 2)
    costs |= {"second": BACKWARD * chosen} if second else {}
    for text in config.orders:
        order = CurveConfig.parse(text)
        if order.order.by in LEARNED:
            ordering = BACKWARD * order.order.gate_steps * config.batch_size
        else:
            ordering = {"random": 0.0, "ablation": SUFFIX * heads * chosen}.get(order.order.by, BACKWARD * chosen)
        point = judged + SOLVED * chosen * order.reconstruct
        costs |= {curve_name(text, seed): ordering + point * len(config.percentages) for seed in range(config.seeds)}
    return costs
