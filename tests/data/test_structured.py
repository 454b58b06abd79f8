"""Several labels an example, tagged words, rankings: from files to metrics, against cases counted by hand."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import headjax
from headjax.data.source import recognise, table_columns
from headjax.evaluation.measures import ndcg, reciprocal_rank
from headjax.evaluation.structured import Ranking, SeveralLabels, entities
from tests import tiny
from tests.data.making import labels
from tests.data.vocabulary import WORDS, write_lines

NAMES = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def spans(*tags, judged=None):
    """The entities of a sentence: type, first and last word."""
    classes = np.asarray([[NAMES.index(tag) for tag in tags]])
    mask = np.asarray([[True] * len(tags) if judged is None else judged])
    begins, kind, end = (np.asarray(array)[0] for array in entities(classes, mask, NAMES))
    return [(("LOC", "O", "PER")[kind[i]], i, end[i]) for i in np.flatnonzero(begins)]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O O", []),
        ("B-PER I-PER O", [("PER", 0, 1)]),
        ("B-PER B-PER I-PER", [("PER", 0, 0), ("PER", 1, 2)]),
        ("O I-PER I-PER", [("PER", 1, 2)]),  # an I after O begins an entity
        ("B-PER I-LOC O", [("PER", 0, 0), ("LOC", 1, 1)]),  # and one after another type
        ("I-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B-LOC O B-LOC", [("LOC", 0, 0), ("LOC", 2, 2)]),
    ],
)
def test_entities_are_those_that_seqeval_finds(tags, expected):
    assert spans(*tags.split()) == expected


def test_pieces_after_the_first_are_passed():
    tags = ("O", "B-PER", "O", "I-PER", "O", "O")
    assert spans(*tags, judged=[False, True, False, True, False, True]) == [("PER", 1, 3)]
    assert spans(*tags, judged=[False, True, True, True, False, True]) == [("PER", 1, 1), ("PER", 3, 3)]


CONLL = """-DOCSTART- -X- O

good NN B-PER
unhappy NN I-PER
film NN O

the DT O
bad NN B-LOC
"""


def test_conll_is_read_and_first_pieces_have_the_tags(tmp_path, wordpiece):
    path = tmp_path / "dev.conll"
    path.write_text(CONLL)
    assert recognise(str(path)) == "tokens"
    data = headjax.data.DataConfig(task=str(path), whole=True).load(wordpiece)
    assert data.info["labels"] == ["B-LOC", "B-PER", "I-PER", "O"]
    row = data.validation[0]  # [CLS] good un ##happy film [SEP]
    pieces = [wordpiece.backend.id_to_token(int(one)) for one in row["input_ids"][:6]]
    assert pieces == ["[CLS]", "good", "un", "##happy", "film", "[SEP]"]
    assert row["labels"][:6].tolist() == [-100, 1, 2, -100, 3, -100]
    table = tmp_path / "dev.parquet"
    parquet.write_table(pyarrow.table({"tokens": [["good", "film"]], "ner_tags": [["B-PER", "O"]]}), table)
    assert recognise(str(table)) == "tokens"
    path.write_text("good\n")
    with pytest.raises(headjax.DataError, match=r"dev\.conll: line 1: expected a word and its tag"):
        headjax.data.DataConfig(task=f"tokens:{path}", whole=True).load(wordpiece)


def test_entity_f1_of_a_model(tmp_path, wordpiece):
    """Predictions are those of the model itself, entities counted by hand from its tags."""
    path = tmp_path / "dev.conll"
    path.write_text(CONLL)
    names = ("B-LOC", "B-PER", "I-PER", "O")
    model = tiny.text_encoder(headjax.tasks.TokenClassification(classes=4, names=names), wordpiece)
    task = headjax.load_task(f"tokens:{path}", model)
    found = headjax.measure_task(model, task, batch_size=2)
    (batch,) = task.batches(2)
    best, labels = np.asarray(model(batch).logits).argmax(axis=-1), batch["labels"]
    assert found.metrics["tag_accuracy"] == pytest.approx((best == labels)[labels >= 0].mean())
    assert set(found.metrics) == {"loss", "entity_f1", "entity_precision", "entity_recall", "tag_accuracy"}
    assert found.outcomes["given"].tolist() == [1, 1]
    with pytest.raises(headjax.HeadjaxError, match=r"^task: .*token_classification"):
        headjax.load_task(f"tokens:{path}", tiny.text_encoder(headjax.tasks.NoTask(), wordpiece))


def test_several_labels(tmp_path, wordpiece):
    path = write_lines(tmp_path / "a.jsonl", *(
        f'{{"text": "{text}", "labels": {labels}}}'
        for text, labels in (("good film", '["fun", "new"]'), ("bad", "[]"), ("dull film", '["new"]'))
    ))  # fmt: skip
    assert recognise(str(path)) == "multi_label"
    data = headjax.data.DataConfig(task=str(path), whole=True).load(wordpiece)
    assert data.info["labels"] == ["fun", "new"]
    assert labels(data.validation) == [[1, 1], [0, 0], [0, 1]]
    model = tiny.text_encoder(headjax.tasks.MultiLabel(classes=2, names=("new", "fun")), wordpiece)
    task = headjax.load_task(str(path), model)
    assert labels(task.data.validation) == [[1, 1], [0, 0], [1, 0]]
    metrics = headjax.evaluate_task(model, task, batch_size=2)
    assert set(metrics) == {"loss", "micro_f1", "macro_f1", "subset_accuracy"}
    # Predicted and given, as 1 and 2: class 0 has 1 right, 1 too many; class 1 has 1 right, 1 missing.
    outcomes = {"class 0": np.asarray([3.0, 1.0, 0.0]), "class 1": np.asarray([3.0, 0.0, 2.0])}
    found = SeveralLabels(names=("new", "fun")).metrics(outcomes)
    assert found["micro_f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert found["macro_f1"] == pytest.approx(2 / 3)
    assert found["subset_accuracy"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "header, rows, form, columns",
    [
        ("Sentence;Label", ["good film;1", "bad;0"], "classification", {"text": "Sentence", "label": "Label"}),
        ("sentence, label", ["good film, 1", "bad, 0"], "classification", {"text": "sentence", "label": " label"}),
        ('"text";label', ['"good, film";0.5', '"bad, dull";1'], "regression", {"text": "text", "label": "label"}),
        ('label;"a, b";text', ["1;a;good film", "0;b;bad"], "classification", {"text": "text", "label": "label"}),
    ],
)
def test_names_of_columns_with_capitals_blanks_and_quoted_commas(tmp_path, header, rows, form, columns):
    path = write_lines(tmp_path / "a.csv", header, *rows)
    assert (recognise(str(path)), table_columns(path)) == (form, columns)


def test_decimal_commas_are_neither_numbers_nor_classes(tmp_path):
    path = write_lines(tmp_path / "a.csv", "sentence;score", "good film;0,5", "bad;1")
    with pytest.raises(
        headjax.DataError, match=r"a\.csv: score: labels have decimal commas, such as '0,5'; write points"
    ):
        recognise(str(path))
    assert recognise(str(write_lines(tmp_path / "b.csv", "sentence;label", "good;a,b", "bad;c"))) == "classification"


def test_rankings_by_hand():
    assert reciprocal_rank([0, 0, 1, 1], 10) == pytest.approx(1 / 3)
    assert reciprocal_rank([0, 0, 1], 2) == 0.0
    assert ndcg([0, 1], 10) == pytest.approx(1 / np.log2(3))
    assert ndcg([2, 0, 1], 10) == pytest.approx((2 + 1 / 2) / (2 + 1 / np.log2(3)))
    outcomes = {
        "query": np.asarray([1, 2, 1, 2, 3]),
        "prediction": np.asarray([0.9, 0.1, 0.2, 0.3, 0.5]),
        "label": np.asarray([0.0, 1.0, 1.0, 0.0, 0.0]),  # the third query has nothing relevant
    }
    assert Ranking().metrics(outcomes) == pytest.approx({"mrr_at_10": 0.5, "ndcg_at_10": 1 / np.log2(3)})


def test_a_sentence_encoder_ranks_candidates(tmp_path, wordpiece):
    rows = ("good film\tgood film\t1", "good film\tbad dull\t0", "it was\tit was\t2", "it was\tnot very\t0")
    path = write_lines(tmp_path / "ranked.tsv", "query\ttext\trelevance", *rows)
    assert recognise(str(path)) == "retrieval"
    encoder = tiny.text_encoder(headjax.tasks.NoTask(), wordpiece)
    task = headjax.load_task(str(path), encoder)
    assert headjax.evaluate_task(encoder, task, batch_size=3)["mrr_at_10"] == 1.0  # equal texts are nearest
    assert labels(task.data.validation) == [0.5, 0.0, 1.0, 0.0]
    predicted = headjax.measure_task(encoder, task).outcomes
    assert len(np.unique(predicted["query"])) == 2


def test_folders_of_datasets_are_read_with_their_class_names(tmp_path, wordpiece):
    described = b'{"info": {"features": {"label": {"names": ["dull", "fun"], "_type": "ClassLabel"}}}}'
    for split, texts in (("train", WORDS[5:9]), ("validation", WORDS[9:11])):
        (tmp_path / "saved" / split).mkdir(parents=True)
        table = pyarrow.table({"text": list(texts), "label": [i % 2 for i in range(len(texts))]})
        table = table.replace_schema_metadata({b"huggingface": described})
        place = tmp_path / "saved" / split / "data-00000-of-00001.arrow"
        with pyarrow.ipc.new_stream(str(place), table.schema) as stream:
            stream.write_table(table)
        (tmp_path / "saved" / split / "state.json").write_text("{}")
    (tmp_path / "saved" / "dataset_dict.json").write_text("{}")
    assert recognise(str(tmp_path / "saved")) == "classification"
    data = headjax.data.DataConfig(task=str(tmp_path / "saved")).load(wordpiece)
    assert (len(data.train), len(data.validation), data.info["labels"]) == (4, 2, ["dull", "fun"])
