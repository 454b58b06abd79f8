"""A recipe that starts from a model directory."""

from __future__ import annotations

import dataclasses

from headjax.models.base import ModelConfig
from headjax.models.recipes.base import Recipe, Start
from headjax.serialize import kind


@kind("directory")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Directory(Recipe):
    """A model directory: an imported, pruned or converted model to train further.

    Attributes:
        path: the directory.
    """

    path: str

    def build(self) -> ModelConfig:
        from headjax.models.directory import load_config

        return load_config(self.path)

    def start(self) -> Start:
        from headjax.models.directory import load

        model = load(self.path)
        return Start(model.config, model.params, model.tokenizer, model.history)
