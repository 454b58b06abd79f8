import numpy as np
import pytest

from headjax.core.errors import HeadjaxError
from headjax.data import PreparedData
from headjax.data.forms import PretrainingForm
from headjax.data.prepare import prepare
from headjax.data.rows import Row, RowSource
from headjax.evaluation.measures import MaskedAndNext
from headjax.evaluation.task import Task, measure_of, measure_task
from headjax.models.encoder import Bert
from headjax.models.sublayers import Dense
from headjax.models.tasks import NoTask, Pretraining
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests.data.vocabulary import TEXT, WORDS, write_vocabulary
from tests.tiny import model, multi_head


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    generator = np.random.default_rng(0)
    sentences = [" ".join(generator.choice(TEXT[:12], 6)).capitalize() + "." for _ in range(60)]
    texts = [" ".join(sentences[start : start + 15]) for start in range(0, 60, 15)]
    rows = RowSource.of([Row(f"document {number}", {"text": text}) for number, text in enumerate(texts)])
    splits = {"train": rows, "validation": rows}
    tokenizer = wordpiece_tokenizer(write_vocabulary(folder))
    prepare("bert_pretraining", PretrainingForm(length=24), splits, tokenizer, folder / "out")
    config = PreparedData(path=str(folder / "out"))
    data = config.load()
    return Task("pretraining", data, measure_of(data))


def test_both_accuracies_count_what_is_right(task):
    recipe = Bert(
        attention=multi_head(), feed_forward=Dense(16), vocab_size=len(WORDS), max_length=24, width=16, num_layers=1,
        task=Pretraining(),
    )  # fmt: skip
    bert = model(recipe.build())
    found = measure_task(bert, task, batch_size=4)
    right = masked = following = examples = 0
    for batch in task.batches(4):
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
    assert (task.headline, task.higher_is_better) == ("masked_accuracy", True)


def test_only_for_models_that_are_pretrained(task):
    recipe = Bert(attention=multi_head(), feed_forward=Dense(16), vocab_size=len(WORDS), width=16, task=NoTask())
    with pytest.raises(HeadjaxError, match=r"^task: .* a pretraining, masked tokens and the next sentence; the model"):
        MaskedAndNext().fit(recipe.build())
