"""A recipe that starts from a model directory."""

from __future__ import annotations

import dataclasses

from headjax.core.serialize import kind
from headjax.models.base import Model, ModelConfig
from headjax.models.recipes.base import Recipe, Start
from headjax.models.tasks import TaskOutput
from headjax.models.tasks.replace import with_task


@kind("directory")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Directory(Recipe):
    """A model directory: an imported, pruned or converted model to train further.

    Attributes:
        path: the directory.
        task: train it for this task, with a fresh output; None keeps the output it has.
    """

    path: str
    task: TaskOutput | None = None

    def build(self) -> ModelConfig:
        from headjax.models.directory import load_config

        config = load_config(self.path)
        return config if self.task is None else with_task(Model(config, {}), self.task).config

    def start(self) -> Start:
        from headjax.models.directory import load

        model = load(self.path)
        model = model if self.task is None else with_task(model, self.task)
        return Start(model.config, model.params, model.tokenizer, model.history)
