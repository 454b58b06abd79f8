"""Two models on the same examples, and the test of a difference, which follows from the measure and not from values."""

import dataclasses

import numpy as np
import pytest

import headjax
from headjax.evaluation.measures import Classes, Kind, LanguageModelling, Measure, Numbers
from headjax.evaluation.paired import compare, head_effects
from headjax.evaluation.spans import Spans
from headjax.evaluation.task import evaluate_task
from headjax.heads.ablation import Ablation
from headjax.heads.head_id import HeadId
from headjax.models.embeddings import Embeddings, Learned
from headjax.models.tasks import Classification, NoTask, Regression, Span
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests import tiny
from tests.closeness import close_to
from tests.data.test_text_data import SHORT, long_paragraph, write_squad
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import BERT, model_of


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    write_lines(folder / "table.tsv", "sentence\tlabel", *(f"{w} film\t{i % 2}" for i, w in enumerate(WORDS[5:13])))
    fields = BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 96, "num_labels": 2}
    return folder, model_of(fields).replace(tokenizer=wordpiece_tokenizer(write_vocabulary(folder)))


def test_classes_agree_by_their_share(bert):
    folder, model = bert
    first, second = (headjax.with_task(model, Classification(classes=2), seed=seed) for seed in (0, 1))
    tasks = tuple(headjax.load_task(str(folder / "table.tsv"), one) for one in (first, second))
    found = compare((first, second), tasks)
    predictions = [headjax.measure_task(one, tasks[0]).outcomes["prediction"] for one in (first, second)]
    assert found.agreement == np.mean(predictions[0] == predictions[1])
    assert found.test == "McNemar's exact test"
    assert found.second.metrics == evaluate_task(second, tasks[0])
    same = compare((first, first), (tasks[0], tasks[0]))
    assert (same.agreement, same.significance.p_value) == (1.0, 1.0)


def test_numbers_and_similarities_agree_by_their_difference(bert):
    folder, model = bert
    first, second = (headjax.with_task(model, Regression(), seed=seed) for seed in (0, 1))
    tasks = tuple(headjax.load_task(str(folder / "table.tsv"), one) for one in (first, second))
    found = compare((first, second), tasks)
    a, b = (headjax.measure_task(one, tasks[0]).outcomes["prediction"] for one in (first, second))
    assert found.agreement == np.abs(a - b).mean() > 0
    assert found.measure == "mean absolute difference of predictions"
    rows = (f"{x} film\tgood {y}\t{i}.5" for i, (x, y) in enumerate(zip(WORDS[5:9], WORDS[9:13], strict=True)))
    path = write_lines(folder / "pairs.tsv", "sentence1\tsentence2\tscore", *rows)
    embedding = headjax.with_task(model, NoTask())
    task = headjax.load_task(str(path), embedding, split="all")
    same = compare((embedding, embedding), (task, task))
    assert (same.agreement, same.measure) == (0.0, found.measure)
    assert set(same.first.metrics) == {"loss", "spearman", "pearson"}


def test_answers_agree_by_their_share(bert):
    folder, model = bert
    write_squad(folder / "dev.json", long_paragraph(), SHORT)
    models = tuple(headjax.with_task(model, Span(), seed=seed) for seed in (0, 1))
    tasks = tuple(headjax.load_task(f"squad:{folder / 'dev.json'}", one) for one in models)
    same = compare((models[0], models[0]), (tasks[0], tasks[0]))
    assert (same.agreement, same.measure) == (1.0, "share of questions with equal answers")
    found = compare(models, tasks)
    assert 0.0 <= found.agreement <= 1.0
    assert found.test


def test_tokens_agree_over_those_that_both_models_have(tmp_path):
    """A vocabulary filled up to a round number has the same text."""
    (tmp_path / "text.txt").write_text("some words of it " * 20)

    def decoder(tokens):
        config = tiny.decoder_config(embeddings=Embeddings(vocab_size=tokens, positions=Learned(16)))
        return tiny.model(config).replace(tokenizer=byte_tokenizer())

    full = decoder(264)
    table = full.params["embeddings"] | {"token": full.params["embeddings"]["token"][:257]}
    cut = decoder(257).replace(params=full.params | {"embeddings": table})
    tasks = tuple(headjax.load_task(str(tmp_path / "text.txt"), one, split="all") for one in (full, cut))
    found = compare((full, cut), tasks)
    assert found.agreement == close_to(0.0, sums=tiny.SUMS)
    assert found.measure == "mean KL(A, B) of the predicted tokens among the 257 tokens that both have, nats"


HEAD = HeadId("encoder", 0, 0)
BASELINE = np.array([1.0, 0.0, 1.0, 1.0])


@dataclasses.dataclass(frozen=True)
class Mean(Measure):
    """The mean of the outcome `value`."""

    headline: str = "value"
    declared: Kind = "graded"

    @property
    def kind(self) -> Kind:
        return self.declared

    def metrics(self, outcomes):
        return {"value": float(outcomes["value"].mean())}

    def values(self, outcomes):
        return outcomes["value"]


def ablation(changed):
    loss = np.ones(4)
    return Ablation(
        "each",
        (HEAD,),
        {"loss": loss, "value": BASELINE},
        {"loss": loss[None], "value": np.asarray(changed)[None]},
        {"loss": np.ones(4), "value": np.ones(4)},
    )


def test_a_graded_outcome_keeps_its_test_whatever_its_values_are():
    """F1 of a few questions is 0 or 1 with all heads; an ablation may leave half an answer."""
    found = head_effects(ablation([0.5, 0.0, 1.0, 1.0]), Mean(), resamples=50)
    assert found.test == "paired bootstrap, 50 resamples"
    assert found.effects() == {HEAD: -0.125}
    assert found.comparisons[HEAD].difference == -0.125
    assert head_effects(ablation([0.0, 0.0, 1.0, 1.0]), Mean(), resamples=50).test == found.test
    exact = head_effects(ablation([0.0, 0.0, 1.0, 1.0]), Mean(declared="binary"))
    assert exact.test == "McNemar's exact test"
    assert exact.comparisons[HEAD].p_value == 1.0


def test_every_measure_says_its_kind():
    assert [one.kind for one in (Classes(), LanguageModelling(), Spans())] == ["binary", "sum", "graded"]
    assert [one.kind for one in (Classes(headline="f1", chosen=("f1",)), Numbers())] == ["corpus", "corpus"]
