"""The plots of RESULTS.md, from raw results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from headjax.core.numbers import percent
from headjax.report.drawing import Axis, Plot, draw, line_plot, spans
from results.table import Row, read, select

Points = list[tuple[float, float]]


def pruning() -> Plot:
    """Return the accuracy of three MiniLMs against the share of the layers' parameters removed."""
    rows = select(read("removals_sst2_seeds"), {"metric": "accuracy"})
    ways = {
        "random heads": {"order": "random", "repair": "none"},
        "heads by raw importance": {"order": "importance", "repair": "none"},
        "heads by reconstruction": {"order": "reconstruction", "repair": "none"},
        "the same, repaired": {"order": "reconstruction", "repair": "feed_forward"},
    }
    shrunk = select(read("shrink_sst2_seeds"), {"metric": "accuracy", "order": "shrink"})
    return line_plot(
        _smaller(rows, ways, shrunk, _share_of_heads(384, 12)),
        title="Three MiniLMs made smaller, not trained",
        x_label="Parameters of the layers removed",
        y_label="Accuracy",
        x_format=percent,
    )


def embedder() -> Plot:
    """Return the quality of all-mpnet-base-v2 against the share of the layers' parameters removed."""
    rows = select(read("removals_mpnet"), {"metric": "spearman"})
    ways = {
        "heads by raw importance": {"order": "importance", "repair": "none"},
        "the same, repaired": {"order": "importance", "repair": "reconstruct"},
        "heads by reconstruction, repaired": {"order": "reconstruction", "repair": "reconstruct"},
    }
    shrunk = select(read("shrink_mpnet"), {"metric": "spearman", "order": "shrink"})
    curves = _smaller(rows, ways, shrunk, _share_of_heads(768, 12))
    title = "all-mpnet-base-v2 made smaller, not trained"
    return draw(
        curves,
        x=Axis("Parameters of the layers removed", percent),
        y=Axis("Spearman on STS-B", limits=(0.8, 0.9)),
        title=title,
        alt=f"{title}: Spearman on STS-B against parameters removed. {spans(curves)}.",
    )


def _share_of_heads(width: int, heads: int) -> float:
    """Return the parameters of all heads over those of attention and feed-forward, in a layer of BERT's shape."""
    size, hidden = width // heads, 4 * width
    own = heads * (4 * width * size + 3 * size)  # columns of three projections with their biases, and rows of W_O
    return own / (4 * (width * width + width) + 2 * width * hidden + hidden + width)


def _smaller(
    rows: Sequence[Row], ways: Mapping[str, Mapping[str, str]], shrunk: Iterable[Row], heads: float
) -> dict[str, Points]:
    """Return removals of heads and shrunk models against the share of the layers' parameters removed."""
    whole = [(0.0, row.value) for row in select(rows, {"share": "0%"})]
    curves = {
        name: [*whole, *_points(select(rows, where), lambda row: heads * _share(row))] for name, where in ways.items()
    }
    return curves | {"shrink: heads, sizes, sharing, units": [*whole, *_points(shrunk, lambda row: 1.0 - _share(row))]}


def caches() -> Plot:
    """Return the perplexity of a decoder with a smaller cache, not trained after the conversion."""
    rows = read("conversions_llama")
    size = {row.setting: row.value for row in select(rows, {"metric": "cache"})}
    (original,) = select(rows, {"metric": "perplexity", "setting": "original"})
    ways = {
        "latent, calibrated (ours)": ("latent:", "calibrated", lambda kind: "error" not in kind),
        "latent, SVD": ("latent:error=weights", "plain", bool),
        "latent, ASVD": ("latent:error=magnitudes", "calibrated", bool),
        "groups, aligned": ("grouped:pooling=aligned", "plain", bool),
        "groups, calibrated": ("grouped:kv_heads", "calibrated", bool),
    }
    curves = {}
    for name, (start, repair, kept) in ways.items():
        found = [row for row in select(rows, {"metric": "perplexity", "repair": repair}) if kept(row.setting)]
        found = [row for row in found if row.setting.startswith(start)]
        curves[name] = [(0.0, original.value), *_points(found, lambda row: 1 - size[row.setting] / size["original"])]
    return line_plot(
        curves,
        title="A 5.8 M Llama, smaller cache, not trained",
        x_label="Cache saved",
        y_label="Perplexity per token",
        scale="log",
        x_format=percent,
    )


def shared_keys() -> Plot:
    """Return the BLEU of models trained from scratch, by the size of their queries and keys."""
    curves: dict[str, Points] = {"concatenated heads": [], "shared keys": []}
    for row in select(read("grid_keys_translation"), {"metric": "bleu"}):
        settings = _settings(row)
        is_shared = settings["shared_dim"] != "0"
        size = float(settings["shared_dim"]) if is_shared else 8 * float(settings["head_dim"])
        curves["shared keys" if is_shared else "concatenated heads"].append((size, row.value))
    return line_plot(
        curves,
        title="Translation: size of queries and keys",
        x_label="Size of queries and keys, all heads together",
        y_label="BLEU",
    )


def admin() -> Plot:
    """Return the loss of deep post-norm models with and without Admin, each at its better learning rate."""
    rates: dict[tuple[str, int, str], list[float]] = {}
    for row in select(read("grid_deep_layers"), {"metric": "loss"}):
        settings = _settings(row)
        key = settings["variant"], 8 * int(settings["num_layers"]), settings["peak"]
        rates.setdefault(key, []).append(row.value)
    curves: dict[str, Points] = {}
    for variant, name in (("deep", "without Admin"), ("deep_admin", "with Admin")):
        for layers in sorted({key[1] for key in rates}):
            found = [values for key, values in rates.items() if key[:2] == (variant, layers)]
            best = min(found, key=lambda values: sum(values) / len(values))
            curves.setdefault(name, []).extend((float(layers), value) for value in best)
    return line_plot(
        curves,
        title="Post-norm layers of one head, width 32",
        x_label="Layers",
        y_label="Loss, nats per byte",
    )


PLOTS: Mapping[str, Callable[[], Plot]] = {
    "embedder": embedder,
    "pruning": pruning,
    "caches": caches,
    "shared_keys": shared_keys,
    "admin": admin,
}
"""Plots by name, in the order of the page."""


def _points(rows: Iterable[Row], x: Callable[[Row], float]) -> Points:
    return [(x(row), row.value) for row in rows]


def _share(row: Row) -> float:
    return float(row.share.rstrip("%")) / 100


def _settings(row: Row) -> dict[str, str]:
    return dict(part.split("=") for part in row.setting.split(","))
