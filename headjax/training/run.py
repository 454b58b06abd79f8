"""The fixed parts of a training run, built and checked before its folder is touched: model, mesh, data, optimizer."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from headjax.core.errors import CheckpointError, ConfigError, DataError, require, within
from headjax.core.memory import check_batch_memory, check_training_memory, memory_of
from headjax.core.progress import Update
from headjax.core.serialize import to_data
from headjax.core.tensors import Params, count
from headjax.core.timing import finished
from headjax.data.examples import TaskData
from headjax.data.stream import evaluation_batches, train_iterator
from headjax.evaluation.measures import Measure
from headjax.evaluation.specs import prompted
from headjax.evaluation.task import Evaluation, measure_batch, measure_of, reduce_batches
from headjax.initialization import Setting
from headjax.mesh.distributed import fetch, on_this_process, process_share, put_batch, put_whole_batch
from headjax.mesh.mesh import check_batch_size
from headjax.models.config import Batch, ModelConfig
from headjax.models.inputs import check_batch
from headjax.models.model import Model, history_entry
from headjax.models.tasks.classification import class_names, with_class_names
from headjax.storage.files import key_of_study
from headjax.training.config import TrainConfig
from headjax.training.distillation import Distillation, answers_of, check_outputs, distillation_objective
from headjax.training.step import Trainer, TrainState
from headjax.training.workdir import check_workdir


@dataclasses.dataclass(frozen=True)
class Training:
    """The fixed parts of a training run; `measured` is the config whose outputs the measure of the data reads."""

    config: TrainConfig
    trainer: Trainer
    data: TaskData
    files: Mapping[str, bytes]
    measure: Measure | None
    measured: ModelConfig
    teacher: Model | None = None

    def first_state(self, start: Model | None) -> tuple[TrainState, tuple[Mapping[str, Any], ...]]:
        """Return the state before the first step, and the history of its model: of given or fresh parameters.

        An initialisation that measures does so on the batches that training then begins with.
        """
        trainer, initialization = self.trainer, self.config.initialization
        if start is not None:
            return trainer.first_state(start.params), tuple(start.history)
        if initialization is None:
            return trainer.first_state(), ()
        model, mesh, key = trainer.model, trainer.mesh, jax.random.key(self.config.seed)

        def draw(key: jax.Array) -> Params:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return initialization.draw(model, key)

        params = jax.jit(draw, out_shardings=trainer.places().params)(key)
        feed = Feed(self) if initialization.batches else ()
        batches = list(itertools.islice(feed, initialization.batches))
        setting = Setting(batches, jax.random.fold_in(key, 0), mesh, self.config.compute)
        params, measured = initialization.measure(model, params, setting)
        return trainer.first_state(params), (history_entry("initialize", **to_data(initialization), **measured),)

    def evaluate(self, params: Params, progress: Update) -> Evaluation:
        """Return the evaluation on the validation split: by the data's own measure, else loss and perplexity."""
        mesh, bound = self.trainer.mesh, Model(self.measured, params)
        batches = validation_batches(self.data, self.config.batch_size)
        placed = (put_whole_batch(check_batch(self.trainer.model, batch), mesh) for batch in batches)
        measured = (measure_batch(bound, self.measure, self.config.compute, batch, mesh=mesh) for batch in placed)
        return reduce_batches(self.measure, list(finished(measured, progress)))

    def trained(self, past: tuple[Mapping[str, Any], ...], params: Params, steps: int, evaluation: Evaluation) -> Model:
        """Return the model after a number of steps, with the run in its history."""
        command, info = "train" if self.teacher is None else "distill", dict(self.data.info)
        notes = {"notes": list(evaluation.notes)} if evaluation.notes else {}
        entry = history_entry(command, steps=steps, data=info, metrics=dict(evaluation.metrics), **notes)
        params = on_this_process(params, self.trainer.mesh)
        return Model(self.trainer.model, params, (*past, entry), self.data.tokenizer, self.files)


class Feed(Iterator[Batch]):
    """Training batches without end, spread over the mesh. Every checkpoint holds its position."""

    def __init__(self, run: Training) -> None:
        config, data, self._trainer = run.config, run.data, run.trainer
        mesh, teacher = run.trainer.mesh, run.teacher
        self._answered = answers_of(teacher, mesh, config.compute)
        share = process_share(mesh)
        self._data = data.info.get("data")
        self._teacher = None if teacher is None else key_of_study("teacher", fetch(teacher.params))
        self._iterator = train_iterator(data.train, config.batch_size, config.seed, share=share, threads=data.threads)

    def __next__(self) -> Batch:
        batch = check_batch(self._trainer.model, next(self._iterator))
        return self._answered(put_batch(batch, self._trainer.mesh))

    @property
    def position(self) -> dict[str, Any]:
        """Position of the next batch, the data that it is a position in, and the teacher's key, as JSON data."""
        return {"iterator": self._iterator.get_state(), "data": self._data, "teacher": self._teacher}

    def go_to(self, position: dict[str, Any], workdir: Path) -> None:
        """Go on from the position in a checkpoint of this workdir."""
        if position["data"] != self._data:
            raise DataError(f"config.data: the text is not the one that {workdir} was trained on so far")
        if position["teacher"] != self._teacher:
            raise CheckpointError(f"{workdir}: holds a run with another teacher, or without one.")
        self._iterator.set_state(position["iterator"])


def validation_batches(data: TaskData, batch_size: int) -> Iterable[Batch]:
    """Return the validation split in batches, padded as little as the training split is."""
    return evaluation_batches(data.validation, batch_size, getattr(data.train, "bounds", ()))


def prepare(
    config: TrainConfig, workdir: Path, data: TaskData | None, teacher: Model | None = None
) -> tuple[Training, Model | None]:
    """Return the run and the model that it starts from, with all checked before the workdir is claimed for it."""
    start = config.trained(config.seed)
    with within("config"):
        mesh = config.mesh.build()
        check_batch_size(config.batch_size, mesh, config.accumulate)
    model = config.architecture() if start is None else start.config
    files, tokenizer = ({}, None) if start is None else (start.files, start.tokenizer)
    there = memory_of(mesh)
    check_training_memory("config.model", count(model.tensors()), there)
    check_workdir(workdir, config)  # before data is loaded; again once no other run can write to it
    if data is None:
        data = prompted(config.data.for_classes(class_names(model)).for_files(files), model).load(tokenizer)
    if len(data.validation) == 0:
        raise DataError("config.data: the validation split is empty")
    model = with_class_names(model, data.info.get("labels", ()))
    check_vocabulary(model, data)
    length, size = data.validation[0], config.batch_size
    check_batch_memory("config.batch_size", size, length, model.width, there, config.accumulate)
    measure = measure_of(data)
    objective = None
    if teacher is not None:
        require(config.accumulate == 1, "config.accumulate", "must be 1 where a teacher's answers are learned, too")
        settings = Distillation(steps=config.steps)
        check_outputs(model, teacher, next(iter(validation_batches(data, size))), settings)
        objective = distillation_objective(model, settings)
    trainer = config.trainer(model, mesh, config.steps, config.seed, objective)
    measured = model if measure is None else measure.fit(model)
    return Training(config, trainer, data, files, measure, measured, teacher), start


def check_vocabulary(model: ModelConfig, data: TaskData) -> None:
    """Raise `ConfigError` when the tokenizer has ids that the model does not embed; ids may have gaps."""
    tokens = getattr(model, "vocab_size", None)
    if data.tokenizer is not None and tokens is not None and (reach := data.tokenizer.largest_id) >= tokens:
        message = f"the model embeds {tokens} tokens, but the tokenizer's ids reach {reach}"
        raise ConfigError(f"config.model.vocab_size: {message}")
