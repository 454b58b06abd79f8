"""Tiny models, texts, tables and configs, for commands to work on."""

import jax

from headjax.attention import Grouped, MultiHead
from headjax.models.decoder import LanguageModel
from headjax.models.encoder import Bert
from headjax.models.model import Model
from headjax.models.sublayers import Dense
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.test_cli import CONFIG
from tests.training.test_grid import CONFIG as GRID

TEXT = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}, no more." for i in range(600))


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
    (folder / "text.txt").write_text(TEXT)


def write_inputs(folder):
    """Writes the same, and what commands refuse: models, texts, tables and configs that do not fit a request."""
    write_language_folder(folder, max_length=32)
    for name, text in {
        "empty.txt": "",
        "binary.txt": "\0\1\2",
        "config.py": CONFIG,
        "other.json": '{"mine": 1}',
    }.items():
        (folder / name).write_text(text)
    (folder / "grid.py").write_text(GRID.replace("PATH", repr("text.txt")))
    (folder / "labels.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    (folder / "good.tsv").write_text("sentence\tlabel\ngood film\tgood\na good film\tgood\n")
    for name, content in {
        "texts/train.en": "one\ntwo\n",
        "texts/train.de": "eins\nzwei\n",
        "films/train.tsv": "text\tlabel\na film\t1\ndull\tbad\n",
        "films/dev.tsv": "text\tlabel\na film\t1\n",
        "hf/config.json": '{"model_type": "bert"}',
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    encoder = Bert(attention=tiny.multi_head(), feed_forward=Dense(16), vocab_size=257, max_length=32, width=16)
    grouped = tiny.layer(Grouped(num_heads=4, kv_heads=2, head_dim=4))
    for name, config in {
        "encoder": encoder.build(),
        "grouped": tiny.decoder_config(grouped, grouped),
        "ragged": tiny.decoder_config(grouped, tiny.layer(tiny.multi_head(4))),
    }.items():
        tiny.model(config).replace(tokenizer=byte_tokenizer()).save(folder / name)
