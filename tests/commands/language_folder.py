"""Tiny models, texts, tables and configs, for commands to work on."""

import jax
import numpy as np

from headjax.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, Model
from headjax.models.new_task import with_task
from headjax.models.tasks import Classification
from headjax.nn import GroupedAttention, Kind, MultiHeadAttention
from headjax.tokenizers.vocabularies import byte_tokenizer
from tests import tiny
from tests.data.vocabulary import TEXT as VOCABULARY
from tests.data.vocabulary import WORDS, film_tokenizer, write_lines

TEXT = "\n\n".join(f"Paragraph {i} says that {i * i} is the square of {i}, no more." for i in range(600))


def write_language_folder(folder, max_length):
    """Writes `model`, a model directory with random weights, and `text.txt`."""
    config = DecoderConfig(
        vocab_size=257,
        max_length=max_length,
        width=16,
        num_layers=2,
        attention=Kind(MultiHeadAttention, num_heads=2, head_dim=8),
        hidden=16,
    )
    params = jax.tree.map(lambda array: 8.0 * array, config.initialize(jax.random.key(0)))
    Model(config, params, tokenizer=byte_tokenizer()).save(folder / "model")
    (folder / "text.txt").write_text(TEXT)


def write_classifier(folder):
    """Writes `encoder`, a BERT without an output, `classifier`, with one, and `films.tsv`, which either can learn."""
    config = EncoderConfig(
        attention=tiny.multi_head(), hidden=32, vocab_size=len(WORDS), max_length=96, width=16,
        num_layers=1, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    encoder = tiny.model(config).replace(tokenizer=film_tokenizer(folder))
    encoder.save(folder / "encoder")
    with_task(encoder, Classification(classes=2, names=("bad", "good"))).save(folder / "classifier")
    generator = np.random.default_rng(0)
    films = [" ".join(generator.choice(VOCABULARY[:12], generator.integers(2, 12))) for _ in range(96)]
    rows = [f"{film}\t{'good' if 'good' in film.split() else 'bad'}" for film in films]
    write_lines(folder / "films.tsv", "sentence\tlabel", *rows)
    return films


def write_inputs(folder):
    """Writes all of this, a translator, and what commands refuse: models, tables and configs that do not fit."""
    write_language_folder(folder, max_length=32)
    write_classifier(folder)
    for name, text in {
        "empty.txt": "",
        "binary.txt": "\0\1\2",
        "one.txt": "".join(f"one {i} of {i * i}\n" for i in range(80)),
        "other.txt": "".join(f"other {i} of {i * i}\n" for i in range(80)),
        "pairs.en": "".join(f"number {i}\n" for i in range(24)),
        "pairs.de": "".join(f"Zahl {i}\n" for i in range(24)),
        "config.py": tiny.config_file(),
        "broken.py": "1 / 0\n",
        "other.json": '{"mine": 1}',
        "stars.csv": "text,stars\ngood,5\nbad,1\n",
        "labels.tsv": "sentence\tlabel\ngood\t1\nbad\t0\n",
        "bare.tsv": "a good film\tgood\nbad\tbad\na film\tgood\n",
        "scored.tsv": "sentence1\tsentence2\tscore\na film\tgood fun\t4\ndull\tgood fun\t1\nfun\tbad film\t2\n",
        "good.tsv": "sentence\tlabel\ngood film\tgood\na good film\tgood\n",
        "texts/train.en": "one\ntwo\n",
        "texts/train.de": "eins\nzwei\n",
        "tables/train.tsv": "text\tlabel\na film\t1\ndull\tbad\n",
        "tables/dev.tsv": "text\tlabel\na film\t1\n",
        "hf/config.json": '{"model_type": "bert"}',
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    grouped = tiny.layer(Kind(GroupedAttention, num_heads=4, kv_heads=2, head_dim=4))
    translation = EncoderDecoderConfig.transformer_base(
        vocab_size=257, width=tiny.WIDTH, num_layers=2, attention=tiny.multi_head(4), hidden=24, activation="gelu"
    )
    for name, config in {
        "translation": translation,
        "grouped": tiny.decoder_config(grouped, grouped),
        "ragged": tiny.decoder_config(grouped, tiny.layer(tiny.multi_head(4))),
    }.items():
        tiny.model(config).replace(tokenizer=byte_tokenizer()).save(folder / name)
