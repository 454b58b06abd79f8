"""`headjax evaluate`, `generate` and `predict`: texts, continuations and labels of models of every kind."""

import json

import pytest

import headjax
from headjax.cli import main
from headjax.commands.predict import WRITERS
from headjax.core.terminal import printable
from headjax.models.tasks import Classification
from headjax.tokenizers.learned import byte_tokenizer
from headjax.tokenizers.vocabularies import wordpiece_tokenizer
from tests import tiny
from tests.data.vocabulary import WORDS, write_lines, write_vocabulary
from tests.hub.directories import BERT, model_of
from tests.models.test_encoder_decoder import translation


@pytest.fixture
def generate(run):
    return lambda *words: run("generate", *words, task=False)


def test_wikitext2_states_its_protocol_and_counts_words(run, folder, tmp_path, capsys):
    (tmp_path / "wiki.valid.raw").write_text(" = Heads = \n One head , two heads . \n" * 20)
    task = f"wikitext2:{tmp_path},context=16,stride=8"
    data = run("evaluate", "--task", task, task=False)
    assert (data["protocol"]["context"], data["protocol"]["stride"]) == (16, 8)
    assert data["evaluation"]["split"] == "validation"
    assert data["metrics"].keys() == {"loss", "perplexity", "word_perplexity", "bits_per_byte"}
    for spec, shown in ((task, True), (str(folder / "text.txt"), False)):  # where the protocol counts them
        assert main(["evaluate", str(folder / "model"), "--task", spec, "--limit", "4"]) == 0
        assert ("word_perplexity" in capsys.readouterr().out) is shown


def test_prompts_are_continued(generate, folder):
    data = generate("--prompt", "Paragraph", "--prompt", "no", "--max-new-tokens", "5", "--batch-size", "1")
    # Two layers, keys and values, 9 + 5 tokens, 2 heads of 8 numbers of 4 bytes
    assert data["cache_bytes"] == 2 * 2 * 14 * 2 * 8 * 4
    assert data["prompt_tokens"] == 11
    assert data["prompts"] == ["Paragraph", "no"]
    model = headjax.load(folder / "model")
    assert data["text"] == headjax.generate(model, ["Paragraph", "no"], max_new_tokens=5)
    assert 2 <= data["tokens"] <= 10
    assert data["tokens_per_second"] == pytest.approx(data["tokens"] / data["seconds"])
    assert generate("--prompt", "a" * 30)["tokens"] <= 2  # without a number the positions are filled


def test_a_file_has_a_prompt_on_each_line(generate, tmp_path):
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\nthree\n")
    data = generate("--file", str(tmp_path / "prompts.txt"), "--max-new-tokens", "3", "--batch-size", "2")
    assert data["prompts"] == ["one", "two", "three"]
    assert len(data["text"]) == 3


def test_draws_repeat_with_their_seed(generate):
    words = "--prompt Par --max-new-tokens 8 --temperature 2 --top-k 40 --top-p 0.9 --seed".split()  # noqa: SIM905
    first, again, other = (generate(*words, seed)["text"] for seed in ("1", "1", "2"))
    assert first == again != other


def test_streaming_prints_the_same_texts(generate, folder, capsys):
    words = ["--prompt", "Paragraph", "--prompt", "no", "--max-new-tokens", "5", "--cache", "20"]
    expected = generate(*words, "--batch-size", "1")["text"]
    capsys.readouterr()
    assert main(["generate", str(folder / "model"), *words, "--stream"]) == 0
    printed = capsys.readouterr().out
    for prompt, text in zip(("Paragraph", "no"), expected, strict=True):
        assert prompt + printable(text) in printed
    assert "Cache: " in printed
    assert "tokens per second" in printed


def test_special_tokens_of_prompts_are_read(generate):
    words = ("--prompt", "<|endoftext|>a", "--max-new-tokens", "2")
    assert generate(*words)["prompt_tokens"] == 2
    assert generate(*words, "--plain")["prompt_tokens"] == 14


def test_an_encoder_decoder_generates_and_translates(tmp_path, capsys):
    model = tiny.model(translation(vocab_size=257, num_layers=1)).replace(tokenizer=byte_tokenizer())
    model.save(tmp_path / "model")
    words = [str(tmp_path / "model"), "--prompt", "gut", "--max-new-tokens", "3", "--json", "-"]
    assert main(["generate", *words]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == [headjax.generate(model, "gut", max_new_tokens=3)]
    words = [str(tmp_path / "model"), "--text", "gut", "--text", "a", "--beams", "2", "--json", "-"]
    assert main(["predict", *words]) == 0
    assert all("translation" in one for one in json.loads(capsys.readouterr().out)["predictions"])


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """A classifier of films, and a table of them."""
    folder = tmp_path_factory.mktemp("predict")
    fields = BERT | {"vocab_size": len(WORDS), "max_position_embeddings": 32, "num_labels": 2}
    model = model_of(fields).replace(tokenizer=wordpiece_tokenizer(write_vocabulary(folder)))
    headjax.with_task(model, Classification(classes=2, names=("bad", "good"))).save(folder / "model")
    write_lines(folder / "table.tsv", "sentence\tlabel", *(f"{word}\tgood" for word in WORDS[5:10]))
    return folder


def test_a_table_is_labelled_and_written(films, capsys):
    words = ["predict", str(films / "model"), "--task", str(films / "table.tsv"), "--limit", "3", "--batch-size", "2"]
    assert main([*words, "--out", str(films / "out.tsv"), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert [one["text"] for one in found] == list(WORDS[5:8])
    assert all(one["given"] == "good" and one["label"] in ("bad", "good") for one in found)
    lines = [line.split("\t") for line in (films / "out.tsv").read_text().splitlines()]
    assert lines[0] == ["text", "given", "label", "probability", "p(bad)", "p(good)"]
    assert float(lines[1][4]) == pytest.approx(found[0]["probabilities"]["bad"])
    assert main([*words, "--out", str(films / "out.jsonl")]) == 0
    assert [json.loads(line) for line in (films / "out.jsonl").read_text().splitlines()] == found
    assert "probability" in capsys.readouterr().out
    assert main(["predict", str(films / "model"), "--text", WORDS[5], "--text", WORDS[6], "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["predictions"]) == 2


@pytest.mark.parametrize(
    ("suffix", "text"), [(".jsonl", '{"value": null, "text": "é"}\n'), (".tsv", "value\ttext\nnull\té\n")]
)
def test_a_number_that_is_not_finite_is_written_as_null(suffix, text):
    assert WRITERS[suffix]([{"value": float("nan"), "text": "é"}]) == text
