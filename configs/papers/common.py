"""Parts shared by the config files of the papers' experiments: runs, and their rehearsals.

A rehearsal (the argument `smoke` of those files) is the same run in small: every size of the model divided by 16, two
layers of it, a few made-up examples in the task's form, a few steps. Formulation, number of heads, biases, norms,
optimizer, precision and rematerialisation stay, so that a rehearsal runs the code of the full experiment.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from headjax.core.errors import ConfigError
from headjax.core.fields import parse_arguments, unknown_name
from headjax.data.config import VOCABULARY
from headjax.data.registry import GLUE, TASKS
from headjax.data.spec import Recipe

Fields = dict[str, Any]

SHRINK = 16
SIZES = ("width", "head_dim", "value_dim", "shared_dim", "hidden", "embedding_size")
"""Fields that a rehearsal divides by `SHRINK`; none falls below 2."""

REHEARSED: Mapping[str, int] = {
    "num_layers": 2,
    "vocab_size": VOCABULARY,
    "max_length": 96,
    "image_size": 32,
    "batch_size": 8,
    "steps": 2,
    "warmup_steps": 1,
    "log_every": 1,
    "evaluate_every": 2,
    "checkpoint_every": 2,
}
"""Largest values of other fields in a rehearsal."""


def arguments(argument: str, **defaults: Any) -> types.SimpleNamespace:
    """The arguments of a file: its own and those of all, `data` (a prepared folder), `seed` and `smoke`.

    Raises:
        ConfigError: an unknown argument or a value of another type.
    """
    return parse_arguments(argument, **({"data": "", "seed": 0, "smoke": False} | defaults))


def experiment(knobs: types.SimpleNamespace, *, data: Fields, every: int = 5000, **fields: Any) -> ConfigDict:
    """A training run on a prepared task, or its rehearsal; with the initialisation of this kind where one is named.

    Args:
        knobs: result of `arguments`.
        data: `task`, its name, and `length` or `form`.
        every: steps between checkpoints and between evaluations.
        **fields: further fields of the run, `model` or `start` among them.
    """
    run = {
        "data": {**data, "task": f"{data['task']}:{knobs.data}" if knobs.data else data["task"]},
        "seed": knobs.seed,
        # These runs are for TPUs, where the other generator's hashes can cost as much as the matrix products.
        "prng": "rbg",
        "log_every": 100,
        "evaluate_every": every,
        "checkpoint_every": every,
        **fields,
    }
    if getattr(knobs, "initialization", ""):
        run["initialization"] = {"kind": knobs.initialization}
    if not knobs.smoke:
        return ConfigDict(run)
    return ConfigDict(_small(run) | {"data": {"rehearsal": 32, "task": data["task"]}, "tensorboard": False})


def _small(node: Any, name: str = "") -> Any:
    if isinstance(node, Mapping):
        return {key: _small(entry, key) for key, entry in node.items()}
    if name in SIZES:
        return max(node // SHRINK, 2)
    return min(node, REHEARSED[name]) if name in REHEARSED else node


def choose(argument: str, value: Any, known: Mapping[Any, Any]) -> Any:
    """The entry of this name.

    Raises:
        ConfigError: an unknown name; the message names the argument.
    """
    if value not in known:
        raise ConfigError(f"{argument}: {unknown_name('choice', str(value), map(str, known))}")
    return known[value]


def started(model: Fields, start: str, output: Fields | None = None) -> Fields:
    """The fields of a run with a fresh model, or from a model directory, with a fresh output where one is given."""
    if not start:
        return {"model": model}
    return {"start": start} | ({} if output is None else {"task": output})


def multi_head(heads: int, head_dim: int = 64, **fields: Any) -> Fields:
    """Multi-head attention."""
    return {"kind": "multi_head", "num_heads": heads, "head_dim": head_dim, **fields}


def cut_or_shared(heads: int, key_dim: int, collaborative: bool, *, scale: float, **fields: Any) -> Fields:
    """`key_dim` dimensions of queries and keys with values of 64, shared by all heads or cut among them.

    Args:
        heads: number of heads.
        key_dim: dimensions of all heads together.
        collaborative: whether they are shared.
        scale: of the logits of heads that are cut.
        **fields: further fields of the collaborative formulation.

    Raises:
        ConfigError: dimensions that cannot be cut among the heads.
    """
    if collaborative:
        sizes = {"shared_dim": key_dim, "value_dim": 64, "head_dim": 64}
        return {"kind": "collaborative", "num_heads": heads, **sizes, **fields}
    if key_dim % heads:
        raise ConfigError(f"key_dim: {key_dim} does not divide among {heads} heads")
    return multi_head(heads, key_dim // heads, value_dim=64, scale=scale)


def bert(width: int, num_layers: int, attention: Fields, hidden: int, output: Fields) -> Fields:
    """BERT with the uncased vocabulary."""
    return {
        "kind": "encoder",
        "vocab_size": 30_522,
        "max_length": 512,
        "width": width,
        "num_layers": num_layers,
        "attention": attention,
        "hidden": hidden,
        "task": output,
    }


PRETRAINING: Fields = {"kind": "pretraining"}
"""The output of BERT's pre-training: masked tokens and next sentences."""


def translation(width: int, heads: int, hidden: int, vocab_size: int, **fields: Any) -> Fields:
    """Six and six layers with fairseq's sinusoidal positions, dropout and label smoothing 0.1."""
    return {
        "kind": "encoder_decoder",
        "vocab_size": vocab_size,
        "width": width,
        "num_layers": 6,
        "attention": multi_head(heads, width // heads),
        "hidden": hidden,
        "activation": "relu",
        "positions": "sinusoidal_endpoint",
        "scale_embeddings": True,
        "token_initializer": {"kind": "fan_out"},
        "initializer": {"kind": "xavier"},
        "dropout": 0.1,
        "label_smoothing": 0.1,
        **fields,
    }


def adam(recipe: Recipe, *, schedule: str, kind: str = "adamw", **fields: Any) -> Fields:
    """Adam with a schedule to a recipe's (first) learning rate; `final` belongs to the schedule."""
    rate = {"kind": schedule, "peak": recipe.learning_rates[0], "warmup_steps": recipe.warmup_steps}
    if "final" in fields:
        rate["final"] = fields.pop("final")
    return {"kind": kind, "schedule": rate, **fields}


def translation_adam(recipe: Recipe, **fields: Any) -> Fields:
    """Adam of the translation recipes: inverse square root, b2 0.98, no clipping, no weight decay unless given."""
    settings = {"b1": 0.9, "b2": 0.98, "weight_decay": 0.0, "clip_norm": 0.0} | fields
    return adam(recipe, schedule="inverse_square_root", **settings)


def bert_adam(recipe: Recipe, **fields: Any) -> Fields:
    """BERT's Adam: a straight line down, b2 0.999, epsilon 1e-6, weight decay 0.01 unless given."""
    settings = {"b1": 0.9, "b2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01} | fields
    return adam(recipe, schedule="linear_decay", **settings)


def glue_output(task: str) -> Fields:
    """The output of a GLUE task: its classes, or one number."""
    classes = choose("task", task, GLUE).form.label_names
    return {"kind": "classification", "classes": len(classes)} if classes else {"kind": "regression"}


def recipe_of(task: str, paper: str, stage: int = 1, *, examples: str = "") -> Recipe:
    """A paper's settings of a task, with the steps of its epochs over the examples of this task or of another one."""
    recipe = TASKS[task].recipe(paper, stage)
    steps = recipe.epochs * -(-TASKS[examples or task].examples // recipe.batch_size)
    return recipe._replace(steps=recipe.steps or steps)


def run_of(task: str, recipe: Recipe) -> Fields:
    """The data, the size of batches and the number of steps of a paper's run on a task."""
    data = {"task": task, "length": recipe.length or TASKS[task].form.limit}
    return {"data": data, "batch_size": recipe.batch_size, "steps": recipe.steps}
