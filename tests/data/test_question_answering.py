from __future__ import annotations

import json

import numpy as np
import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data.forms.questions import QUESTION_LENGTH, QuestionForm, QuestionWindows
from headjax.data.loading import record_sizes
from headjax.data.text_data import QuestionAnswering
from headjax.data.text_rows import read_questions
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import TEXT, write_vocabulary

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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return wordpiece_tokenizer(write_vocabulary(tmp_path_factory.mktemp("vocabulary")))


def test_spans_are_the_answers(tmp_path, tokenizer):
    path = write_squad(tmp_path / "a.json", SHORT)
    rows = QuestionAnswering(validation=path, stride=8, max_length=100).load(tokenizer).validation
    assert len(rows) == 2
    assert rows.windows.questions[1].answers == ("film", "x")
    for window, answer in enumerate(("very good", "film")):
        row = rows[window]
        assert rows.windows.answer(window, row["start_positions"], row["end_positions"]) == answer
        assert row["window"] == window
        np.testing.assert_array_equal(row["context_mask"], row["token_type_ids"] * (row["context_mask"] == 1))
    words = [tokenizer.backend.id_to_token(int(one)) for one in rows[0]["input_ids"][:6]]
    assert words == ["[CLS]", "was", "it", "good", "[SEP]", "the"]


def test_long_paragraphs_have_overlapping_windows(tmp_path, tokenizer):
    path = write_squad(tmp_path / "a.json", long_paragraph(), SHORT)
    rows = QuestionAnswering(validation=path, max_length=100, stride=16).load(tokenizer).validation
    windows = [window for window in rows.windows.windows if window.question == 0]
    assert len(windows) == 2
    ends = [window.offsets[window.offsets[:, 1] > 0] for window in windows]
    overlap = {tuple(span) for span in ends[0]} & {tuple(span) for span in ends[1]}
    assert len(overlap) == 16
    assert ends[-1][-1][1] == len(rows.windows.questions[0].context)
    spans = [(int(rows[i]["start_positions"]), int(rows[i]["end_positions"])) for i in range(2)]
    assert spans[0] == (0, 0)
    assert rows.windows.answer(1, *spans[1]) == "unhappy"  # three pieces
    assert rows.windows.windows[2].question == 1


def test_the_first_questions_to_evaluate_on(tmp_path, tokenizer):
    path = write_squad(tmp_path / "a.json", SHORT, long_paragraph())
    fields = {"train": path, "validation": path, "max_length": 100, "stride": 16}
    whole, some = (QuestionAnswering(**fields, validation_limit=limit).load(tokenizer) for limit in (0, 1))
    assert [question.id for question in some.validation.windows.questions] == [whole.validation.windows.questions[0].id]
    assert len(some.train) == len(whole.train)
    with pytest.raises(ConfigError, match=r"^validation_limit: must not be negative"):
        QuestionAnswering(validation=path, validation_limit=-1)


def test_questions_are_cut(tmp_path, tokenizer):
    entry = {"id": "q", "question": "a " * 90, "answers": [{"text": "film", "answer_start": 4}]}
    path = write_squad(tmp_path / "a.json", {"context": "The film", "qas": [entry]})
    row = QuestionAnswering(validation=path, max_length=100, stride=8).load(tokenizer).validation[0]
    assert row["attention_mask"].sum() == QUESTION_LENGTH + 2 + 3


@pytest.mark.parametrize(
    "data, message",
    [
        ({"data": []}, "no questions"),
        ([], "not in SQuAD's format"),
        ({"data": [{"paragraphs": [{"qas": [{"id": "7"}]}]}]}, "not in SQuAD's format (KeyError: 'context')"),
        (
            {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "7", "question": "", "answers": []}]}]}]},
            "question 7: no answer",
        ),
        (
            {"data": [{"paragraphs": [{"context": "a b", "qas": [
                {"id": "7", "question": "", "answers": [{"text": "b", "answer_start": 1}]}]}]}]},
            "question 7: 'b' does not stand at character 1 of its context",
        ),
    ],
)  # fmt: skip
def test_broken_files(tmp_path, tokenizer, data, message):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(data))
    with pytest.raises(DataError) as caught:
        QuestionAnswering(validation=str(path)).load(tokenizer)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_errors(tmp_path, tokenizer):
    path = write_squad(tmp_path / "a.json", SHORT)
    with pytest.raises(DataError, match=r"^max_length: 80 tokens leave 13 for the paragraph, stride is 128$"):
        QuestionAnswering(validation=path, max_length=80).load(tokenizer)
    with pytest.raises(DataError, match=r"^tokenizer: it has no post-processor"):
        QuestionAnswering(validation=path).load(byte_tokenizer())
    with pytest.raises(DataError, match=r"^tokenizer: questions need a model that brings its tokenizer$"):
        QuestionAnswering(validation=path).load()
    with pytest.raises(ConfigError, match=r"^stride: must not be negative"):
        QuestionAnswering(validation=path, stride=-1)
    (tmp_path / "b.json").write_text('{"data": [\n}')
    with pytest.raises(DataError, match=r"b.json: line 2: not JSON"):
        read_questions(tmp_path / "b.json")


def test_real_questions(data_dir):
    """Every answer is found again from its tokens, up to what a token boundary cannot tell."""
    tokenizer: Tokenizer = wordpiece_tokenizer(data_dir / "vocab" / "bert-base-uncased-vocab.txt")
    questions = read_questions(data_dir / "squad" / "squadshifts_new_wiki_v1.0.json")[:1500]
    form = QuestionForm()
    records = form.encode(tokenizer, questions, "validation", ()).records
    rows = form.examples(tokenizer, records, record_sizes(form, records), "validation")
    assert isinstance(rows, QuestionWindows)
    starts, ends = rows.values("start_positions"), rows.values("end_positions")
    found: dict[int, set[str]] = {number: set() for number in range(len(questions))}
    for i in np.flatnonzero(ends):
        found[rows.windows.windows[i].question].add(rows.windows.answer(int(i), int(starts[i]), int(ends[i])))
    exact = [found[number] == {question.values["answers"][0]} for number, question in enumerate(questions)]
    assert np.mean(exact) > 0.99
    assert all(any(question.values["answers"][0] in text for text in found[n]) for n, question in enumerate(questions))
