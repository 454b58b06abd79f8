"""`headjax generate`: text from prompts and files, greedy, drawn or searched, of decoders and encoder-decoders."""

from __future__ import annotations

import json

import pytest

import headjax
from headjax.cli import main
from headjax.core.terminal import printable
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.models.test_encoder_decoder import translation


@pytest.fixture
def generate(run):
    return lambda *words: run("generate", *words, task=False)


def test_prompts_are_continued(generate, folder):
    data = generate("--prompt", "Paragraph", "--prompt", "no", "--max-new-tokens", "5", "--batch-size", "1")
    known = {"text", "prompts", "tokens", "seconds", "tokens_per_second", "sampler", "model"}
    added = {"prompt_tokens", "prefill_tokens_per_second", "decode_tokens_per_second", "cache_bytes", "command_seconds"}
    assert known | added == data.keys()
    # Two layers, keys and values, 9 + 5 tokens, 2 heads of 8 numbers of 4 bytes
    assert data["cache_bytes"] == 2 * 2 * 14 * 2 * 8 * 4
    assert data["prompt_tokens"] == 11
    assert data["prompts"] == ["Paragraph", "no"]
    model = headjax.load(folder / "model")
    assert data["text"] == headjax.generate(model, ["Paragraph", "no"], max_new_tokens=5)
    assert 2 <= data["tokens"] <= 10
    assert data["tokens_per_second"] == pytest.approx(data["tokens"] / data["seconds"])


def test_without_a_number_the_positions_are_filled(generate):
    assert generate("--prompt", "a" * 30)["tokens"] <= 2


def test_a_file_has_a_prompt_on_each_line(generate, tmp_path):
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\nthree\n")
    data = generate("--file", str(tmp_path / "prompts.txt"), "--max-new-tokens", "3", "--batch-size", "2")
    assert data["prompts"] == ["one", "two", "three"]
    assert len(data["text"]) == 3


def test_draws_repeat_with_their_seed(generate):
    words = ["--prompt", "Par", "--max-new-tokens", "8", "--temperature", "2", "--top-k", "40", "--top-p", "0.9"]
    first, again, other = (generate(*words, "--seed", seed)["text"] for seed in ("1", "1", "2"))
    assert first == again != other


def test_beams_find_a_likelier_text(generate, folder):
    assert len(generate("--prompt", "Par", "--max-new-tokens", "4", "--beams", "3")["text"]) == 1


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
    data = generate("--prompt", "<|endoftext|>a", "--max-new-tokens", "2")
    assert data["prompt_tokens"] == 2
    assert generate("--prompt", "<|endoftext|>a", "--max-new-tokens", "2", "--plain")["prompt_tokens"] == 14


def test_an_encoder_decoder_translates(tmp_path, capsys):
    model = tiny.model(translation(vocab_size=257, num_layers=1)).replace(tokenizer=byte_tokenizer())
    model.save(tmp_path / "model")
    words = ["generate", str(tmp_path / "model"), "--prompt", "gut", "--max-new-tokens", "3", "--json", "-"]
    assert main(words) == 0
    greedy = json.loads(capsys.readouterr().out)["text"]
    assert greedy == [headjax.generate(model, "gut", max_new_tokens=3)]


def test_an_encoder_does_not_generate(tmp_path, capsys):
    from tests.models.test_encoder import config

    tiny.model(config(num_layers=1)).save(tmp_path / "model")
    assert main(["generate", str(tmp_path / "model"), "--prompt", "a"]) == 2
    assert "model: it has no decoder" in capsys.readouterr().err
