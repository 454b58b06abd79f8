"""Removing heads and sharing keys, alone and in both orders, at equal parameters.

    python -m results.experiments.composition FOLDER     # writes results/measurements/composition_translation.csv

`FOLDER/MODEL/SHARE/` holds, for each model and percentage of its parameters, `ORDER.json` of `headjax prune --remove 0%
--fine-tune N` after all removals and conversions, `ORDER-inspect.json` of `headjax inspect`, and, but for the original
(`100/whole.json`), `ORDER-compare.json` of `headjax compare` with it, both fine-tuned.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results.table import Row, write


def measure(folder: Path) -> Iterator[Row]:
    """Yield sizes, times and perplexities of every model, share and order."""
    models = sorted(path for path in folder.iterdir() if path.is_dir())
    for seed, model in enumerate(models):
        for inspected in sorted(model.glob("*/*-inspect.json")):
            order, share = inspected.name.removesuffix("-inspect.json"), inspected.parent
            tuned, size = _read(share / f"{order}.json"), _read(inspected)
            compared = share / f"{order}-compare.json"
            row = Row(seed=str(seed), share=f"{share.name}%", order=order)
            for metric in ("parameters", "heads", "flops"):
                yield row._replace(metric=metric, value=float(size[metric]))
            time = 1 / _read(compared)["speed_up"] if compared.is_file() else 1.0
            yield row._replace(metric="time ratio", value=time)
            yield row._replace(metric="perplexity", value=tuned["metrics_before"]["perplexity"])
            yield row._replace(metric="perplexity, fine-tuned", value=tuned["metrics"]["perplexity"])


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    write("composition_translation", measure(Path(sys.argv[1])))
