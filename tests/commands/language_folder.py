"""A tiny language model and a text, for commands to work on."""

import jax

from headjax.attention import MultiHead
from headjax.models.decoder import LanguageModel
from headjax.models.model import Model
from headjax.models.sublayers import Dense
from headjax.tokenizers.learned import byte_tokenizer


def write_language_folder(folder, max_length):
    """Writes `model`, a model directory with random weights, and `text.txt`."""
    config = LanguageModel(
        vocab_size=257,
        max_length=max_length,
        width=16,
        num_layers=2,
        attention=MultiHead(num_heads=2, head_dim=8),
        feed_forward=Dense(16),
    ).build()
    params = jax.tree.map(lambda array: 8.0 * array, config.initialize(jax.random.key(0)))
    Model(config, params, tokenizer=byte_tokenizer()).save(folder / "model")
    text = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}, no more." for i in range(600))
    (folder / "text.txt").write_text(text)


def write_inputs(folder):
    """Writes the same, an empty text, and a table that the model does not fit."""
    write_language_folder(folder, max_length=32)
    (folder / "empty.txt").write_text("")
    (folder / "labels.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
