"""Rows of films, good and bad, that tests of prepared shards share."""

import numpy as np

from headjax.data.forms import LabelledForm
from headjax.data.rows import Row
from tests.data.vocabulary import TEXT

FORM = LabelledForm(length=12, classes=("bad", "good"))
SIZE = 250
"""Bytes of a shard: about ten rows."""


def rows(count, seed=0):
    generator = np.random.default_rng(seed)
    words = [word for word in TEXT if word.isalpha()]
    texts = [" ".join(generator.choice(words, generator.integers(1, 8))) for _ in range(count)]
    return [Row(f"film.tsv: row {i}", {"text": text, "label": i % 2}) for i, text in enumerate(texts)]
