"""What other uses of an embedding model keep: search, similarity, and linear probes of its frozen vectors.

    HEADJAX_DATA=... python -m results.uses MODEL [SMALLER ...] [--out FILE.json] [--seed 0]

Models are directories of any kind that headjax reads. The data are files below HEADJAX_DATA:

    sts        Spearman of cosines and scores, 1,500 pairs of STS-B's development set
    paraphrase area under the ROC curve of cosines, 1,000 pairs of MRPC
    search     share of 480 questions of SQuAD whose paragraph is the first of 240
    topic      accuracy of 24 articles of SQuAD from a question's vector, 1,200 questions to fit and 480 to judge
    sentiment  accuracy of SST-2, 1,200 sentences to fit and the 872 of the development set to judge
    grammar    accuracy of CoLA, 1,600 sentences to fit and 800 to judge
    inference  accuracy of SNLI's relation from both vectors, 2,000 pairs to fit and 1,000 to judge

A probe is a ridge regression onto the classes; half of the examples to fit choose the ridge. Each number of a smaller
model has the 95 % interval of its difference from the first, over resampled examples.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import headjax
from headjax.evaluation.measures import spearman
from headjax.evaluation.paired import paired_bootstrap
from headjax.evaluation.predictions import Inputs, predict
from headjax.hub.either import read_model

RIDGES = tuple(10.0**power for power in range(-4, 3))


class Use(NamedTuple):
    """A use: the texts whose vectors it reads, and the score of each judged example, or their statistic."""

    texts: Sequence[str]
    judge: Callable[[np.ndarray], np.ndarray]  # vectors [texts, size] to outcomes [examples, ...]
    number: Callable[[np.ndarray], float] = lambda outcomes: float(outcomes.mean())


def main() -> None:
    """Judge the models and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    uses = dict(uses_of(Path(os.environ["HEADJAX_DATA"]), np.random.default_rng(options.seed)))
    outcomes = {path: judged(path, uses) for path in options.models}
    rows = []
    for path, found in outcomes.items():
        for name, use in uses.items():
            change = paired_bootstrap(outcomes[options.models[0]][name], found[name], use.number)
            value = use.number(found[name])
            rows.append({"model": path, "use": name, "value": value, "low": change.low, "high": change.high})
    for row in rows:
        print("{model}  {use:10} {value:.4f}  difference {low:+.4f} to {high:+.4f}".format(**row))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def judged(path: str, uses: dict[str, Use]) -> dict[str, np.ndarray]:
    """Return the outcomes of a model in every use."""
    model = read_model(path)
    return {name: use.judge(vectors(model, use.texts)) for name, use in uses.items()}


def vectors(model: headjax.Model, texts: Sequence[str]) -> np.ndarray:
    """Return the unit vectors of texts `[texts, size]`."""
    found = np.array([each["embedding"] for each in predict(model, Inputs(texts), batch_size=32)])
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def uses_of(data: Path, rng: np.random.Generator) -> Iterator[tuple[str, Use]]:
    """Yield the uses by name."""
    pairs = _rows(data / "glue/STS-B/stsb-en-dev.csv", ",")
    scores = np.array([float(score) for *_, score in pairs])
    yield "sts", _similarity([row[:2] for row in pairs], scores, lambda x: spearman(x[:, 0], x[:, 1]))
    mrpc = _rows(data / "glue/MRPC/msr_paraphrase_train.txt", "\t", encoding="utf-8-sig")[1:]
    mrpc = [mrpc[row] for row in rng.permutation(len(mrpc))[:1000]]
    yield "paraphrase", _similarity([row[3:5] for row in mrpc], np.array([float(row[0]) for row in mrpc]), _area)
    yield from _squad(data / "squad/dev-v1.1.from-explorer.json", rng)
    fit, judge = (_rows(data / f"glue/SST-2/{name}.tsv", "\t") for name in ("train", "dev_glue"))
    fit = [row for row in fit if row[1] in "01"]
    chosen = [fit[row] for row in rng.permutation(len(fit))[:1200]] + [row for row in judge if row[1] in "01"]
    yield "sentiment", _probe([row[0] for row in chosen], [row[1] for row in chosen], 1200)
    cola = _rows(data / "glue/CoLA/in_domain_train.tsv", "\t")
    cola = [cola[row] for row in rng.permutation(len(cola))[:2400]]
    yield "grammar", _probe([row[3] for row in cola], [row[1] for row in cola], 1600)
    snli = _rows(data / "nli/snli_dev.csv", ",")[1:]
    snli = [snli[row] for row in rng.permutation(len(snli))[:3000]]
    texts = [row[0] for row in snli] + [row[1] for row in snli]
    yield "inference", _probe(texts, [row[2] for row in snli], 2000, _both)


def _rows(path: Path, delimiter: str, encoding: str = "utf-8") -> list[list[str]]:
    plain: dict[str, Any] = {} if delimiter == "," else {"quoting": csv.QUOTE_NONE}
    with path.open(encoding=encoding, newline="") as lines:
        return list(csv.reader(lines, delimiter=delimiter, **plain))


def _squad(path: Path, rng: np.random.Generator) -> Iterator[tuple[str, Use]]:
    """Yield search of paragraphs by questions, and a probe of the articles that questions are about."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    paragraphs = [each for article in articles for each in article["paragraphs"] if len(each["qas"]) > 1]
    chosen = [paragraphs[row] for row in rng.permutation(len(paragraphs))[:240]]
    questions = [question["question"] for each in chosen for question in each["qas"][:2]]

    def first(found: np.ndarray) -> np.ndarray:
        nearest = (found[len(chosen) :] @ found[: len(chosen)].T).argmax(axis=1)
        return np.asarray(nearest == np.arange(len(questions)) // 2, np.float64)

    yield "search", Use([each["context"] for each in chosen] + questions, first)
    asked = [
        (question["question"], article["title"])
        for article in articles[:24]
        for each in article["paragraphs"]
        for question in each["qas"][-1:]
    ]
    asked = [asked[row] for row in rng.permutation(len(asked))[:1680]]
    yield "topic", _probe([text for text, _ in asked], [title for _, title in asked], len(asked) - 480)


def _similarity(pairs: Sequence[Sequence[str]], wanted: np.ndarray, number: Callable[[np.ndarray], float]) -> Use:
    """Return a use of cosines; its outcomes are cosines and the wanted scores `[pairs, 2]`."""

    def judge(found: np.ndarray) -> np.ndarray:
        return np.stack([(found[: len(pairs)] * found[len(pairs) :]).sum(axis=1), wanted], axis=1)

    return Use([pair[0] for pair in pairs] + [pair[1] for pair in pairs], judge, number)


def _area(outcomes: np.ndarray) -> float:
    """Return the share of pairs of examples, one of each class, that the cosine orders rightly."""
    ranks, positive = stats.rankdata(outcomes[:, 0]), outcomes[:, 1] > 0
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(ranks) - count)))


def _both(found: np.ndarray) -> np.ndarray:
    """Return the features of pairs: both vectors, their product and their distance by coordinate."""
    first, second = np.split(found, 2)
    return np.concatenate([first, second, first * second, np.abs(first - second)], axis=1)


def _probe(
    texts: Sequence[str], labels: Sequence[str], fitted: int, features: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> Use:
    """Return a use of vectors by a ridge regression onto the classes; its outcomes are hits of the judged examples."""
    names = sorted(set(labels))
    numbers = np.array([names.index(label) for label in labels])

    def judge(found: np.ndarray) -> np.ndarray:
        x, wanted = features(found), np.eye(len(names))[numbers]
        half = fitted // 2
        mean, spread = x[:fitted].mean(axis=0), x[:fitted].std(axis=0) + 1e-9
        x = (x - mean) / spread
        hits = [_hits(x[:half], wanted[:half], x[half:fitted], numbers[half:fitted], ridge).mean() for ridge in RIDGES]
        ridge = RIDGES[int(np.argmax(hits))]
        return _hits(x[:fitted], wanted[:fitted], x[fitted:], numbers[fitted:], ridge)

    return Use(texts, judge)


def _hits(x: np.ndarray, wanted: np.ndarray, judged: np.ndarray, numbers: np.ndarray, ridge: float) -> np.ndarray:
    centre = wanted.mean(axis=0)
    gram = x.T @ x / len(x) + ridge * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x.T @ (wanted - centre) / len(x))
    return np.asarray((judged @ weights + centre).argmax(axis=1) == numbers, np.float64)


if __name__ == "__main__":
    main()
