"""Questions in SQuAD's format."""

import json

import numpy as np

from tests.data.vocabulary import TEXT

SHORT = {
    "context": "The film was not dull, it was very good!",
    "qas": [
        {"id": "a", "question": "was it good", "answers": [{"text": "very good", "answer_start": 30}]},
        {"id": "b", "question": "the film", "answers": [
            {"text": "film", "answer_start": 4}, {"text": "x", "answer_start": 0}]},
    ],
}  # fmt: skip


def write_squad(path, *paragraphs):
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": list(paragraphs)}]}))
    return str(path)


def long_paragraph(words=150, at=100):
    """A paragraph with one `unhappy` in it."""
    generator = np.random.default_rng(0)
    text = [*generator.choice(TEXT[:12], words)]
    text[at] = "unhappy"
    context = " ".join(text)
    answer = {"text": "unhappy", "answer_start": context.index("unhappy")}
    return {"context": context, "qas": [{"id": "long", "question": "was it fun", "answers": [answer]}]}
