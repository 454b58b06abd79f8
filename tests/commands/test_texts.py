"""`headjax evaluate`, `generate` and `predict`: texts, continuations and labels of models of every kind."""

import json

import pytest

import headjax
from tests import tiny
from tests.models.test_encoder_decoder import translation


def test_wikitext2_states_its_protocol_and_counts_words(run, tmp_path):
    (tmp_path / "wiki.valid.raw").write_text(" = Heads = \n One head , two heads . \n" * 20)
    data, told = run("evaluate model --task wikitext2:OUT,context=16,stride=8")
    assert (data["protocol"]["context"], data["protocol"]["stride"]) == (16, 8)
    assert data["evaluation"]["split"] == "validation"
    assert data["metrics"].keys() == {"loss", "perplexity", "word_perplexity", "bits_per_byte"}
    assert "word_perplexity" in told  # where the protocol counts words
    assert "word_perplexity" not in run("evaluate model --task text.txt --limit 4").told


def test_prompts_are_continued(run, folder):
    data = run("generate model --prompt Paragraph --prompt no --max-new-tokens 5 --batch-size 1").data
    assert data["prompts"] == ["Paragraph", "no"]
    model = headjax.load(folder / "model")
    assert data["text"] == headjax.generate(model, ["Paragraph", "no"], max_new_tokens=5)
    assert 2 <= data["tokens"] <= 10
    assert data["tokens_per_second"] == pytest.approx(data["tokens"] / data["seconds"])
    filled = run(f"generate model --prompt {'a' * 30}").data
    assert filled["tokens"] <= 2  # without a number the positions are filled


def test_a_file_has_a_prompt_on_each_line(run, tmp_path):
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\nthree\n")
    data = run("generate model --file OUT/prompts.txt --max-new-tokens 3 --batch-size 2").data
    assert data["prompts"] == ["one", "two", "three"]
    assert len(data["text"]) == 3


def test_draws_repeat_with_their_seed(run):
    words = "generate model --prompt Par --max-new-tokens 8 --temperature 2 --top-k 40 --top-p 0.9 --seed"
    first, again, other = (run(f"{words} {seed}").data["text"] for seed in (1, 1, 2))
    assert first == again != other


def test_an_encoder_decoder_generates_and_translates(run, tmp_path):
    model = tiny.model(translation(vocab_size=257, num_layers=1)).replace(tokenizer=headjax.byte_tokenizer())
    model.save(tmp_path / "model")
    data = run("generate OUT/model --prompt gut --max-new-tokens 3").data
    assert data["text"] == [headjax.generate(model, "gut", max_new_tokens=3)]
    data = run("predict OUT/model --text gut --text a --beams 2").data
    assert all("translation" in one for one in data["predictions"])


def test_a_table_is_labelled_and_written(run, folder, tmp_path):
    words = "predict classifier --task films.tsv --limit 3 --batch-size 2"
    found = run(f"{words} --out OUT/out.tsv").data["predictions"]
    rows = [line.split("\t") for line in (folder / "films.tsv").read_text().splitlines()[1:4]]
    assert [[one["text"], one["given"]] for one in found] == rows
    assert all(one["label"] in ("bad", "good") for one in found)
    lines = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert lines[0] == ["text", "given", "label", "probability", "p(bad)", "p(good)"]
    assert float(lines[1][4]) == pytest.approx(found[0]["probabilities"]["bad"])
    assert max(map(len, lines[1][3:])) <= len("0.1234")
    assert "probability" in run(f"{words} --out OUT/out.jsonl").told
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == found
    assert len(run("predict classifier --text good --text fun").data["predictions"]) == 2
