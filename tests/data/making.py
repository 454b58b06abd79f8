"""Examples of forms, made in memory."""

from headjax.data.forms.form import record_sizes
from headjax.data.rows import Row
from headjax.tokenizers.vocabularies import byte_tokenizer

BYTES = byte_tokenizer()
END = 256


def texts(*found):
    return [Row(f"text {i}", {"text": text}) for i, text in enumerate(found)]


def train(form, tokenizer, rows, seed=(0,)):
    """Examples to train on, from memory."""
    records = form.encode(tokenizer, rows, "train", seed).records
    return examples(form, tokenizer, records)


def examples(form, tokenizer, records, split="train"):
    return form.examples(tokenizer, records, record_sizes(form, records), split)


def labels(source):
    """The labels of all examples."""
    return [source[index]["labels"].tolist() for index in range(len(source))]
