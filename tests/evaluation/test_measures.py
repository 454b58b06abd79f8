"""Measures by hand: pretraining, translations, spans of answers; what is not finite ends with a name."""

import json
import sys

import numpy as np
import pytest

import headjax
from headjax.data.forms import PretrainingForm
from headjax.data.rows import Row, RowSource
from headjax.data.store import prepare
from headjax.evaluation.predictions import corpus_bleu
from headjax.evaluation.structured import answer_f1, best_span, exact_match, normalize_answer, squad_metrics
from headjax.evaluation.task import measure_of
from tests.closeness import close_to
from tests.data.squad import SHORT, long_paragraph, write_squad
from tests.data.vocabulary import TEXT, WORDS
from tests.tiny import decoder_config, model, multi_head, text_encoder, tokens


def damaged(value):
    fine = model(decoder_config())
    embeddings = {**fine.params["embeddings"]}
    embeddings["token"] = embeddings["token"].at[3, 0].set(value)
    return fine.replace(params={**fine.params, "embeddings": embeddings})


def test_save_and_evaluate_name_the_weights_or_the_batch(tmp_path):
    with pytest.raises(headjax.ParameterError, match=r"^embeddings/token: "):
        damaged(np.nan).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(headjax.HeadjaxError, match=r"^embeddings/token: "):
        headjax.evaluate(damaged(np.nan), [tokens()])
    # Finite weights whose products are not.
    with pytest.raises(headjax.HeadjaxError, match=r"^evaluation: .*batch 0.*(nan|inf)$"):
        headjax.evaluate(damaged(3e38), [tokens()])


@pytest.fixture(scope="module")
def pretraining(folder, tokenizer):
    generator = np.random.default_rng(0)
    sentences = [" ".join(generator.choice(TEXT[:12], 6)).capitalize() + "." for _ in range(60)]
    texts = [" ".join(sentences[start : start + 15]) for start in range(0, 60, 15)]
    rows = RowSource.of([Row(f"document {number}", {"text": text}) for number, text in enumerate(texts)])
    splits = {"train": rows, "validation": rows}
    prepare("bert_pretraining", PretrainingForm(length=24), splits, tokenizer, folder / "out")
    data = headjax.data.DataConfig(task=str(folder / "out")).load()
    return headjax.Task("pretraining", data, measure_of(data))


def test_both_accuracies_count_what_is_right(pretraining):
    config = headjax.EncoderConfig(
        attention=multi_head(), hidden=16, vocab_size=len(WORDS), max_length=24, width=16, num_layers=1,
        task=headjax.tasks.Pretraining(),
    )  # fmt: skip
    bert = model(config)
    found = headjax.measure_task(bert, pretraining, batch_size=4)
    right = masked = following = examples = 0
    for batch in pretraining.batches(4):
        output = bert(batch)
        chosen = np.asarray(output.logits).argmax(axis=-1)
        right += int((chosen == batch["labels"]).sum())
        masked += int((batch["labels"] >= 0).sum())
        follows = np.asarray(output.extra_logits["seq_relationship_logits"]).argmax(-1)
        following += int((follows == batch["next_sentence_label"]).sum())
        examples += int((batch["next_sentence_label"] >= 0).sum())
    assert found.examples == examples
    assert found.metrics["masked_accuracy"] == pytest.approx(right / masked)
    assert found.metrics["next_sentence_accuracy"] == pytest.approx(following / examples)
    assert 0 < right < masked
    assert (pretraining.primary_metric, pretraining.higher_is_better) == ("masked_accuracy", True)


LINES = ["ab", "abc", "b", "cab", "bca"]


@pytest.fixture(scope="module")
def prefix(folder):
    (folder / "val.xx").write_text("\n".join(LINES))
    (folder / "val.yy").write_text("\n".join(line.upper() for line in LINES))
    return f"{folder}/val"


@pytest.fixture(scope="module")
def translator():
    config = headjax.EncoderDecoderConfig.transformer_base(
        vocab_size=257, width=16, num_layers=1, attention=multi_head(), hidden=16, activation="gelu"
    )
    return model(config).replace(tokenizer=headjax.byte_tokenizer())


def test_perplexity_of_translations(translator, prefix):
    task = headjax.load_task(f"translation:{prefix}:xx-yy", translator, length=8)
    metrics = headjax.evaluate_task(translator, task, batch_size=4)
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    assert metrics["bits_per_byte"] > metrics["loss"] / np.log(2)  # the end tokens stand for no byte
    with pytest.raises(headjax.HeadjaxError, match=r"^task: expected translation:PATH:SOURCE-TARGET"):
        headjax.load_task("translation:data/file", translator)


def test_translations_are_those_of_beam_search(translator, prefix):
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    config = headjax.data.DataConfig(task=f"translation:{prefix}:xx-yy", whole=True, length=8)
    pairs = config.load(headjax.byte_tokenizer()).validation
    found = headjax.translate(translator, pairs, batch_size=4, beams=2, max_new_tokens=4)
    assert len(found.texts) == 5
    assert 0 <= found.bleu.score <= 100
    batch = next(headjax.evaluation_batches(pairs, 4))
    tokens = headjax.beam_search(
        translator, {name: batch[name] for name in ("input_ids", "attention_mask")}, beams=2, max_new_tokens=4,
        end_token=256,
    ).tokens  # fmt: skip
    first = np.asarray(tokens)[0, 0]
    assert found.texts[0] == headjax.byte_tokenizer().decode(first[: [*first, 256].index(256)]).strip()


def test_sacrebleu_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(headjax.DataError, match=r"^bleu: .*sacrebleu"):
        corpus_bleu(["a"], ["a"])


@pytest.fixture(scope="module")
def squad(folder):
    write_squad(folder / "dev-v1.1.json", long_paragraph(), SHORT)
    return f"squad:{folder}"


@pytest.fixture(scope="module")
def reader(tokenizer):
    return text_encoder(headjax.tasks.Span(), tokenizer, max_length=100)


def test_best_span_by_trying_all():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(3, 40, 2)).astype(np.float32)
    inside = np.zeros((3, 40), np.int32)
    inside[:, 5:38] = 1
    logits[0, 37, 0] = logits[0, 6, 1] = 50.0  # an end before its start
    logits[1, 5, 0] = logits[1, 36, 1] = 50.0  # 32 tokens
    scores, starts, ends = (
        np.asarray(array) for array in best_span(headjax.models.Output(logits, logits), {"context_mask": inside})
    )
    for row in range(3):
        spans = {
            (start, end): logits[row, start, 0] + logits[row, end, 1]
            for start in range(5, 38)
            for end in range(start, min(start + 30, 38))
        }
        best = max(spans, key=spans.__getitem__)
        assert (starts[row], ends[row]) == best
        assert scores[row] == close_to(spans[best], sums=2)


def test_a_question_is_answered_by_its_best_window(reader, squad):
    task = headjax.load_task(squad, reader)
    assert task.data.validation[0]["input_ids"].shape == (100,)  # as many as the model has positions
    found = headjax.measure_task(reader, task, batch_size=2)
    assert found.examples == len(task.data.validation.windows)
    answers = task.measure.answers(found.outcomes)
    assert list(answers) == [0, 1, 2]
    windows = task.data.validation.windows
    best = int(np.argmax(np.where([window.number == 0 for window in windows], found.outcomes["score"], -np.inf)))
    start, end = (int(found.outcomes[name][best]) for name in ("start", "end"))
    assert (answers[0].text, answers[0].score) == (windows[best].answer(start, end), found.outcomes["score"][best])
    gold = {window.number: window.question.answers for window in windows}
    values = [answer_f1(answers[number].text, gold[number]) for number in range(3)]
    assert found.metrics["f1"] == pytest.approx(np.mean(values))
    np.testing.assert_allclose(task.measure.values(found.outcomes), values)
    assert (task.primary_metric, task.higher_is_better) == ("f1", True)


def test_normalisation():
    for text, normal in {
        "The  Cat.": "cat",
        "a U.S. theme": "us theme",
        "An\tapple, the pear": "apple pear",
        "the-": "",
        "Ärger – «das»": "ärger – «das»",  # noqa: RUF001
    }.items():
        assert normalize_answer(text) == normal


def test_overlap_counts_repeated_words():
    assert answer_f1("new york new york", ["new york city"]) == pytest.approx(2 * 2 / (4 + 3))
    assert answer_f1("york", ["paris", "New York"]) == pytest.approx(2 * 1 / (1 + 2))
    assert answer_f1("", ["paris"]) == 0.0
    assert exact_match("the Paris!", ["paris", "x"]) == 1.0
    assert squad_metrics({"a": "x", "other": "y"}, {"a": ["x"], "b": ["y"]}) == {"exact_match": 0.5, "f1": 0.5}


LEADERBOARD = {
    "bert_ensemble": (86.206, 92.196),
    "rnetplus_ensemble": (82.469, 88.478),
    "logreg_baseline": (40.142, 50.982),
}


@pytest.mark.parametrize("name", LEADERBOARD)
def test_published_predictions_score_what_the_leaderboard_says(data_dir, name):
    articles = json.loads((data_dir / "squad" / "dev-v1.1.from-explorer.json").read_text())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    answers = {qa["id"]: [answer["text"] for answer in qa["answers"]] for p in paragraphs for qa in p["qas"]}
    predictions = json.loads((data_dir / "squad" / f"pred_{name}.json").read_text())
    scores = squad_metrics(predictions, answers)
    assert tuple(round(100 * scores[metric], 3) for metric in ("exact_match", "f1")) == LEADERBOARD[name]
