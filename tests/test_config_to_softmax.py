"""The files that docs/architecture.md names between a config and the softmax are those that a forward goes through."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from headjax.attention import MultiHead
from headjax.models import LanguageModel, Options
from headjax.models.sublayers import Dense

ROOT = Path(__file__).parents[1]


def named_files() -> list[str]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    path = re.search(r"From a config to the softmax(.*?)From a command", text, flags=re.S)
    assert path is not None
    return re.findall(r"`((?:models|attention)/[\w/]+\.py)`", path[1])


def test_the_map_names_the_files_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    module = importlib.import_module("headjax.attention.attend")
    softmax = module.softmax

    def recording(logits: jax.Array) -> jax.Array:
        frame = sys._getframe(1)
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(ROOT / "headjax"):
                seen.append(str(file.relative_to(ROOT / "headjax")))
            frame = frame.f_back
        return softmax(logits)

    monkeypatch.setattr(module, "softmax", recording)
    recipe = LanguageModel(
        vocab_size=7,
        max_length=5,
        width=8,
        num_layers=1,
        attention=MultiHead(num_heads=2, head_dim=4),
        feed_forward=Dense(8),
    )
    config = recipe.build()
    params = config.initialize(jax.random.key(0))
    config.forward(config.bind(params), {"input_ids": jnp.ones((1, 5), jnp.int32)}, Options())
    assert list(dict.fromkeys(reversed(seen))) == named_files()
    assert sys.modules[type(recipe).__module__] is sys.modules[type(config).__module__]
    assert len(named_files()) <= 5
