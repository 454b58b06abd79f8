"""Removing heads and sharing keys, alone and in both orders, at equal parameters.

    python -m results.experiments.composition FOLDER     # writes results/measurements/composition_translation.csv

`FOLDER/MODEL/SHARE/` holds, for each model and percentage of its parameters, `ORDER-inspect.json` of `headjax inspect`
after all removals and conversions, `ORDER-evaluate.json` of `headjax evaluate` of that model, and `ORDER-pair.json` of
`headjax evaluate` of the original beside the fine-tuned one. The committed numbers were measured when `prune` and
`convert` took a number of parameters and trained afterwards.
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
            bare, pair, size = (_read(share / f"{order}-{kind}.json") for kind in ("evaluate", "pair", "inspect"))
            row = Row(seed=str(seed), share=f"{share.name}%", order=order)
            for metric in ("parameters", "heads", "flops"):
                yield row._replace(metric=metric, value=float(size[metric]))
            yield row._replace(metric="time ratio", value=1 / pair["other"]["speed_up"])
            yield row._replace(metric="perplexity", value=bare["metrics"]["perplexity"])
            yield row._replace(metric="perplexity, fine-tuned", value=pair["other"]["metrics"]["perplexity"])


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    write("composition_translation", measure(Path(sys.argv[1])))
