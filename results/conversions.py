"""Convert a model to many sizes, plain, calibrated and calibrated with training after it, and evaluate each.

python -m results.conversions MODEL OUT.json --task TASK --to collaborative:shared_dim=384/192 --to grouped:kv_heads=4
--variants plain,calibrated,fine-tuned --fine-tune 60 --train FILE
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import headjax
from headjax.evaluation.paired import RESAMPLES, paired_test
from headjax.evaluation.task import measure_task
from headjax.models.model import Model
from headjax.training.distillation import Distillation
from results.examples import Opened, opened, parser


def expand(text: str) -> list[str]:
    """Return `grouped:kv_heads=6/4` as one target for each size: `grouped:kv_heads=6`, `grouped:kv_heads=4`."""
    head, separator, sizes = text.rpartition("=")
    return [f"{head}{separator}{size}" for size in sizes.split("/")]


def trials(found: Opened) -> Iterator[dict[str, Any]]:
    """Yield the original first, then every trial."""
    model, parts, options = found
    task = parts.evaluation
    sizes: dict[str, Any] = {"limit": options.limit, "batch_size": options.batch_size, "buckets": options.buckets}
    own = measure_task(model, task, **sizes)
    test, against = paired_test(own.outcomes, task.measure, RESAMPLES)
    first = {"to": "original", "variant": "plain", "logit_error": 0.0, "metrics": own.metrics, "against_original": None}
    yield {**first, **_sizes(model), "test": test, "examples": own.examples}
    batches = found.calibration(options.seed)
    for target in (each for text in options.to for each in expand(text)):
        for variant in options.variants:
            calibration = None if variant == "plain" else batches
            converted = headjax.convert(model, target, batches=calibration, seed=options.seed)
            changed, errors = converted.model, [error.logit_error or 0.0 for error in converted.errors]
            if variant == "fine-tuned":
                examples = task.train_batches(options.batch_size, seed=options.seed)
                changed = headjax.distill(changed, model, examples, Distillation(steps=options.fine_tune)).model
            evaluated = measure_task(changed, task, **sizes)
            yield {
                "to": target,
                "variant": variant,
                "logit_error": float(np.sqrt(np.mean(np.square(errors)))),
                "metrics": evaluated.metrics,
                "against_original": against(evaluated.outcomes)._asdict(),
                **_sizes(changed),
            }


def _sizes(model: Model) -> dict[str, int]:
    """Return the parameters of a model, and the numbers that its layers cache for a token."""
    return {"parameters": model.num_parameters, "cache": headjax.summarize(model.config, 1).cache_bytes_per_token // 4}


def main(words: Sequence[str] | None = None) -> None:
    """Run the trials that the words name, print a line for each, and write them all."""
    made = parser(__doc__)
    made.add_argument("--to", action="append", required=True)
    made.add_argument("--variants", type=lambda text: text.split(","), default=["plain", "calibrated"])
    made.add_argument("--fine-tune", type=int, default=0, help="steps of the variant fine-tuned")
    options = made.parse_args(words)
    found = opened(options)
    headline = found.parts.evaluation.primary_metric
    result: dict[str, Any] = {"headline": headline, "trials": []}
    for trial in trials(found):
        result["trials"].append(trial)
        p_value = (trial["against_original"] or {}).get("p_value", float("nan"))
        value, size = trial["metrics"][headline], trial["parameters"]
        print(f"{trial['to']}, {trial['variant']}: {headline} {value:.4f}, {size:,} parameters, p {p_value:.3g}")
    options.out.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
