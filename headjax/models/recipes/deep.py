"""The recipe of deep models with few heads a layer."""

from __future__ import annotations

import dataclasses

from headjax.core.serialize import kind
from headjax.models.base import Model, ModelConfig
from headjax.models.deep import deep_config, deepen
from headjax.models.recipes.base import Recipe, Start


@kind("deep")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Deep(Recipe):
    """Another recipe's model with its heads in layers of their own (Liu et al. 2021), see `headjax.models.deep`.

    Of a recipe that starts from trained weights (`directory`) it takes the weights too. The function is another one.

    Attributes:
        of: the recipe of the model with many heads a layer.
        heads: heads of each new layer.
    """

    of: Recipe
    heads: int = 1

    def build(self) -> ModelConfig:
        return deep_config(self.of.build(), self.heads)

    def start(self) -> Start:
        start = self.of.start()
        if start.params is None:
            return Start(deep_config(start.config, self.heads))
        model = deepen(Model(start.config, start.params, start.history, start.tokenizer), self.heads)
        return Start(model.config, model.params, model.tokenizer, model.history)
