"""A model as a notebook shows it: a summary, and foldable trees of its layers, parameters, config and history."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import jax

from headjax.core.serialize import to_data
from headjax.models.config import ModelConfig


def model_view(
    summary: str, config: ModelConfig, params: Mapping[str, Any], history: tuple[Mapping[str, Any], ...]
) -> str:
    """Return a model as HTML without scripts or styles, closed but for the summary.

    Args:
        summary: text above the trees.
        config, params, history: of the model.
    """
    stacks = {
        stack: {str(number): f"{layer.num_heads} heads: {layer!r}" for number, layer in enumerate(layers)}
        for stack, layers in config.attentions().items()
    }
    trees = [
        _tree("attention", stacks),
        _tree("parameters", params),
        _tree("config", to_data(config)),
        _tree(
            "history", {f"{number} {entry.get('action', '?')}": entry for number, entry in enumerate(history, start=1)}
        ),
    ]
    return f"<div><pre>{html.escape(summary)}</pre>{''.join(trees)}</div>"


def _tree(name: str, value: Any) -> str:
    """Return a value under its name: mappings and lists of mappings fold, everything else is a line."""
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        value = {str(number): item for number, item in enumerate(value)}
    title = f"<b>{html.escape(name)}</b>"
    if not isinstance(value, Mapping) or not value:
        return f"<div>{title}: <code>{html.escape(_line(value))}</code></div>"
    sizes = [leaf.size for leaf in jax.tree.leaves(value) if hasattr(leaf, "shape")]
    size = f" ({sum(sizes):,} parameters)" if sizes else ""
    inside = "".join(_tree(str(key), item) for key, item in value.items())
    return f'<details><summary>{title}{size}</summary><div style="margin-left: 1.5em">{inside}</div></details>'


def _line(value: Any) -> str:
    """Return a value in a line, an array by its type and shape."""
    return f"{value.dtype} {list(value.shape)}" if hasattr(value, "shape") else str(value)
