"""`headjax tokenizer`, and the data that names what it wrote."""

import json

import pytest

from headjax.cli import main
from headjax.data.text_data import LanguageConfig, ParallelText

TEXT = "".join(f"Line {i} of the text says that the sum of {i} and {i} is {2 * i}.\n\n" for i in range(300))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    for name in ("text.txt", "pairs.en", "pairs.de"):
        (folder / name).write_text(TEXT)
    return folder


@pytest.mark.parametrize("kind, size", [("bpe", 300), ("sentencepiece", 60)])
def test_a_vocabulary_is_learned_and_used(folder, tmp_path, kind, size):
    if kind == "sentencepiece":
        pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    out, report = tmp_path / "vocabulary", tmp_path / "report.json"
    words = ["tokenizer", str(folder / "text.txt"), "--out", str(out), "--kind", kind, "--vocab-size", str(size)]
    assert main([*words, "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["vocab_size"] == size
    assert found["bytes_per_token"] > 1
    data = LanguageConfig(path=str(folder / "text.txt"), length=16, tokenizer=str(out)).load()
    assert data.info["tokenizer"] == found["fingerprint"]
    pairs = ParallelText(
        train=str(folder / "pairs"), validation=str(folder / "pairs"), source="en", target="de", tokenizer=str(out)
    )
    assert pairs.load().info["tokenizer"] == found["fingerprint"]
