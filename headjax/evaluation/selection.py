"""Selection of the examples on which heads are chosen and metrics are taken: one policy for every command.

Heads are chosen, scored and calibrated on *selection* examples: the training examples of a task. Metrics are
taken on *evaluation* examples: its validation examples. A task with a single split is divided in halves.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headjax.core.errors import DataError, HeadjaxError
from headjax.data.examples import concatenated, subset
from headjax.data.stream import LABELS
from headjax.evaluation.task import Task

SEED = 0  # seed of the order in which training examples are drawn, and of the hash that divides a single split

SPLITS = ("train", "validation")
HALVES = ("selection half", "evaluation half")

RULE = (
    "one split: its examples are sorted by a hash of their inputs (seed 0), equal ones together; heads are chosen on "
    "the first half, metrics are taken on the other"
)


class Parts(NamedTuple):
    """A task's two parts."""

    selection: Task
    evaluation: Task


def split_task(task: Task, select: str | Task = "train", *, train: Task | None = None) -> Parts:
    """Return the examples to choose heads on and those to take metrics on.

    A task without training examples is divided: examples are sorted by the SHA-256 of their inputs (labels do not
    count), and the first half is for selection. Equal examples, pairs with the same first text, and all questions about
    one paragraph stay together. The halves are disjoint and the same on every machine.

        >>> model = headjax.demo_model()
        >>> task = headjax.load_task("LICENSE", model, length=64)
        >>> parts = headjax.split_task(task)
        >>> len(parts.evaluation.data.validation)
        11

    Args:
        task: the task.
        select: `train`; `validation`, the evaluation examples themselves; or another task, whose training examples are
            taken (all examples if it has a single split).
        train: a task whose training examples (all examples of a single split) take the place of the task's own, also
            to train on; `task` is then not divided.

    Raises:
        HeadjaxError: an unknown split.
        DataError: a single split that cannot be divided because its examples are all equal or about one paragraph.
    """
    chosen = selection_of(select) if isinstance(select, Task) else None
    if train is not None:
        training = selection_of(train)
        task = dataclasses.replace(task, data=task.data._replace(train=training.data.train), part=task.split)
        chosen = training if select == "train" else chosen
    if chosen is not None:
        return Parts(chosen, task)
    if select not in SPLITS:
        raise HeadjaxError(f"select: expected {' or '.join(SPLITS)}, or other examples, got {select!r}")
    if select == "validation":
        data = task.data._replace(train=task.data.validation)
        return Parts(dataclasses.replace(task, data=data, part=task.split), task)
    if len(task.data.train):
        return Parts(selection_of(task), task)
    return _halves(task)


def selection_of(task: Task) -> Task:
    """Return the task whose `batches` give its training examples, or all of a single split, in a random order."""
    rows, split, measure = task.data.train, "train", task.measure
    if len(rows):
        measure = measure.on(rows, task.data.info.get("train", {}))
    else:
        rows, split = task.data.validation, task.split
    order = np.random.default_rng(SEED).permutation(len(rows))
    data = task.data._replace(train=rows, validation=subset(rows, order))
    return dataclasses.replace(task, data=data, measure=measure, part=split)


def joined(tasks: Sequence[Task], count: int = 0, seed: int = SEED) -> Task:
    """Return the examples of several tasks as one: `count`, of each task an equal share; 0 is all of all.

    What a task has too few of, others with more make up for.
    """
    if len(tasks) == 1:
        return tasks[0]
    sizes, rng = [task.count() for task in tasks], np.random.default_rng(seed)
    shares = equal_shares(sizes, count or sum(sizes))
    drawn = [
        subset(task.data.validation, rng.permutation(size)[:share])
        for task, size, share in zip(tasks, sizes, shares, strict=True)
        if share
    ]
    rows = concatenated(drawn)
    data = tasks[0].data._replace(train=rows, validation=rows, info={"labelled": all(task.labelled for task in tasks)})
    names = ", ".join(f"{task.name} ({share:,})" for task, share in zip(tasks, shares, strict=True))
    parts = ", ".join(dict.fromkeys(task.split for task in tasks))
    return dataclasses.replace(tasks[0], name=names, data=data, part=parts)


def equal_shares(sizes: Sequence[int], count: int) -> list[int]:
    """Return shares of a count, equal as far as the sizes allow; the larger ones take what does not divide."""
    shares = [0] * len(sizes)
    for left, index in enumerate(sorted(range(len(sizes)), key=lambda index: (sizes[index], -index))):
        shares[index] = min(sizes[index], (count - sum(shares)) // (len(sizes) - left))
    return shares


def describe(task: Task, limit: int = 0) -> dict[str, Any]:
    """Return the description of examples in a command's JSON."""
    form = {"form": task.data.info["form"]} if "form" in task.data.info else {}
    rule = {"rule": RULE} if task.split in HALVES else {}
    return {"task": task.name, "split": task.split, "examples": task.count(limit), **form, **rule}


def in_words(selection: Mapping[str, Any] | None, evaluation: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the notes under a command's table about its examples."""
    parts = {title: part for title, part in (("Selection", selection), ("Evaluation", evaluation)) if part is not None}
    notes = []
    for title, part in parts.items():
        form = f" (read as {part['form']})" if "form" in part else ""
        notes.append(f"{title}: {part['examples']:,} examples of {part['task']}{form}, {part['split']}.")
    if any("rule" in part for part in parts.values()):
        notes.append(f"The task has {RULE}.")
    if len(parts) == 2 and len({(part["task"], part["split"]) for part in parts.values()}) == 1:
        notes.append("Selection and evaluation have the same examples, which flatters the metrics.")
    return tuple(notes)


def _halves(task: Task) -> Parts:
    source = task.data.validation
    groups: dict[bytes, list[int]] = {}
    for index in range(len(source)):
        groups.setdefault(_group(task, source[index]), []).append(index)
    if len(groups) < 2:
        raise DataError(
            f"{task.name}: its examples are all equal, or about one paragraph, and cannot be divided; name others to "
            "choose heads on (--calibration)"
        )
    chosen: list[int] = []
    for key in sorted(groups)[:-1]:
        if 2 * len(chosen) >= len(source):
            break
        chosen += groups[key]
    others = np.setdiff1d(np.arange(len(source)), chosen)
    first, second = subset(source, np.asarray(chosen)), subset(source, others)
    halves = (task.data._replace(train=first, validation=half) for half in (first, second))
    return Parts(*(dataclasses.replace(task, data=data, part=part) for data, part in zip(halves, HALVES, strict=True)))


def _group(task: Task, example: Mapping[str, np.ndarray]) -> bytes:
    """Return a hash that is the same for examples which must stay together.

    It is that of the inputs without padding, of a pair of texts of the first one alone.
    """
    together, arrays = task.measure.together(example), {name: np.asarray(array) for name, array in example.items()}
    if together is not None:
        parts = {"together": together.encode()}
    elif "input_ids" not in arrays:
        parts = {name: array.tobytes() for name, array in arrays.items() if name not in LABELS}
    else:
        ids = arrays["input_ids"]
        kept = arrays.get("attention_mask", np.ones_like(ids)) == 1
        if "segment_ids" in arrays:
            kept &= arrays["segment_ids"] <= 1
        elif "token_type_ids" in arrays:
            kept &= arrays["token_type_ids"] == 0
        parts = {"input_ids": ids[kept].astype("<i8").tobytes()}  # one type, so that the hash is the same everywhere
    digest = hashlib.sha256(str(SEED).encode())
    for name, content in sorted(parts.items()):
        digest.update(name.encode() + b"\0" + content)
    return digest.digest()
