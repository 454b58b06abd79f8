"""Remove heads in many ways, orders x shares x repairs x draws of calibration examples, and evaluate each.

    python -m results.removals MODEL OUT.json --task TASK --remove 25%,50% --by importance,random
        --repair none,reconstruct,feed_forward --draws 3

Orders are headjax's own and those of `results.rivals`, which has the repairs, too. `query_key` removes the share of the
sizes of queries and keys instead of heads; its repair is `logits`. Heads are gated off and not cut out, which computes
the same, so that all trials share one compiled program.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

import headjax
from headjax.evaluation.paired import RESAMPLES, paired_test
from headjax.evaluation.task import Evaluation, measure_task
from headjax.heads.agreement import agreement_kind, agreements
from headjax.heads.discovery import find_sites
from headjax.heads.ordering import Order, amount_of, requested_count
from headjax.heads.orders import OrderConfig
from headjax.models.config import Batch
from headjax.models.model import Model
from results.examples import Opened, opened, parser
from results.query_key import without_query_key
from results.rivals import CHOICES, ORDERS, REPAIRS

QUERY_KEY = "query_key"
"""Name of the removal of sizes of queries and keys."""

AGREED = 512
"""Greatest number of evaluation examples on which the agreement with the original is measured."""


def trials(found: Opened) -> Iterator[dict[str, Any]]:
    """Yield the baseline first, then every trial."""
    model, parts, options = found
    task = parts.evaluation
    sizes: dict[str, Any] = {"batch_size": options.batch_size, "buckets": options.buckets}
    judged = list(task.batches(limit=min(options.limit or AGREED, AGREED), **sizes))

    def evaluate(model: Model) -> Evaluation:
        return measure_task(model, task, options.limit, **sizes)

    whole = evaluate(model)
    test, against_whole = paired_test(whole.outcomes, task.measure, RESAMPLES)
    first = {
        "baseline": whole.metrics,
        "examples": whole.examples,
        "test": test,
        "agreement": agreement_kind(model.config),
    }
    yield first
    for draw in range(options.seed, options.seed + options.draws):
        batches = found.calibration(draw)
        for by in options.by:
            for removal in removals(model, batches, by, options.remove, draw):
                off = dict.fromkeys(removal.heads, 0.0)
                bare = evaluate(headjax.gated(removal.model, off))
                _, against_none = paired_test(bare.outcomes, task.measure, RESAMPLES)
                for repair in options.repair:
                    start, repaired, evaluated = time.process_time(), removal.model, bare
                    if repair != "none":
                        repaired = jax.block_until_ready(removal.repairs[repair]())
                    repair_seconds = time.process_time() - start
                    if repair != "none":
                        evaluated = evaluate(headjax.gated(repaired, off))
                    (agreed,) = agreements(model, [headjax.gated(repaired, off)], judged)
                    yield {
                        "order": by,
                        "remove": removal.share,
                        "draw": draw,
                        "repair": repair,
                        "removed": len(removal.heads),
                        "metrics": evaluated.metrics,
                        "agreement": agreed.value,
                        "against_whole": against_whole(evaluated.outcomes)._asdict(),
                        "against_none": None if repair == "none" else against_none(evaluated.outcomes)._asdict(),
                        "order_seconds": removal.seconds,
                        "repair_seconds": repair_seconds,
                    }


class Removal(NamedTuple):
    """Heads that go, the model to gate, its repairs by name, and the processor seconds that the choice took."""

    share: str
    heads: Order
    model: Model
    repairs: Mapping[str, Callable[[], Model]]
    seconds: float


def removals(model: Model, batches: Sequence[Batch], by: str, shares: Sequence[str], seed: int) -> Iterator[Removal]:
    """Yield the removals of an order, which is made once for all shares, or of a choice for each."""
    start, counts = time.process_time(), [requested_count(find_sites(model), share) for share in shares]
    order: Order = ()
    if by in ORDERS:
        order = ORDERS[by](model, batches, max(counts))
    elif by not in (*CHOICES, QUERY_KEY):
        order = headjax.order_heads(model, batches, OrderConfig(by=by, seed=seed))
    seconds = time.process_time() - start
    for share, count in zip(shares, counts, strict=True):
        start = time.process_time()
        if by == QUERY_KEY:
            sizes = functools.partial(without_query_key, model, batches, amount_of(share).of(100) / 100)
            smaller = sizes(compensated=False)
            yield Removal(share, (), smaller, {"logits": sizes}, time.process_time() - start)
            continue
        heads = CHOICES[by](model, batches, count) if by in CHOICES else order[:count]
        repairs = {name: functools.partial(repair, model, batches, heads) for name, repair in REPAIRS.items()}
        yield Removal(share, heads, model, repairs, seconds + time.process_time() - start)


def main(words: Sequence[str] | None = None) -> None:
    """Run the trials that the words name, print a line for each, and write them all."""
    made = parser(__doc__)
    made.add_argument("--remove", type=lambda text: text.split(","), required=True)
    made.add_argument("--by", type=lambda text: text.split(","), default=["importance", "reconstruction", "random"])
    made.add_argument("--repair", type=lambda text: text.split(","), default=["none", "reconstruct"])
    made.add_argument("--draws", type=int, default=1)
    options = made.parse_args(words)
    found = opened(options)
    headline = found.parts.evaluation.primary_metric
    each = trials(found)
    result: dict[str, Any] = next(each) | {"headline": headline, "removals": []}
    print(f"all heads: {headline} {result['baseline'][headline]:.4f} on {result['examples']:,} examples")
    for trial in each:
        result["removals"].append(trial)
        name = f"{trial['remove']} by {trial['order']}, repair {trial['repair']}, draw {trial['draw']}"
        p_value = trial["against_whole"]["p_value"]
        print(f"{name}: {headline} {trial['metrics'][headline]:.4f}, p against all heads {p_value:.3g}", flush=True)
        options.out.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
