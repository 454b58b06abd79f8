"""Trimming to the tokens of a corpus: texts made of kept tokens are split as before and give the same outputs."""

import json

import numpy as np
import tokenizers

import headjax
from headjax.tokenizers.vocabularies import wordpiece_of
from tests.closeness import assert_close
from tests.command_line import main
from tests.hub.directories import BERT, CONFIGS, model_of

PIECES = [
    "[PAD]",
    "[UNK]",
    "never",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "##b",
    "an",
    "##y",
    "##thing",
    "good",
    "film",
    "x",
]


def bert():
    """A BERT with 20 rows of embeddings for 14 pieces."""
    return model_of(CONFIGS["bert"]).replace(tokenizer=wordpiece_of(PIECES, "pieces"))


def outputs(model, text):
    ids = np.array([model.tokenizer.backend.encode(text).ids], np.int32)
    return model({"input_ids": ids, "attention_mask": np.ones_like(ids)})


def test_outputs_of_kept_tokens_are_the_same_to_the_bit():
    model = bert()
    trimmed = headjax.trim_vocabulary(model, ["a good film", "any"])
    kept = trimmed.history[-1]["kept"]
    assert [PIECES[old] for old in kept] == [token for token in PIECES if token not in ("never", "##thing")]
    assert trimmed.config.vocab_size == len(kept) == trimmed.tokenizer.vocab_size
    for text in ("good any film", "any a", "x anb"):
        assert trimmed.tokenizer.backend.encode(text).tokens == model.tokenizer.backend.encode(text).tokens
        ours, theirs = outputs(trimmed, text), outputs(model, text)
        np.testing.assert_array_equal(ours.hidden, theirs.hidden)
        np.testing.assert_array_equal(ours.pooled, theirs.pooled)
    embeddings = (each.params["embeddings"]["token"] for each in (trimmed, model))
    ours, theirs = map(np.asarray, embeddings)
    np.testing.assert_array_equal(ours, theirs[kept])


def test_merges_of_kept_tokens_stay():
    model = headjax.demo_model()
    texts = ["def read(self, names):", "    return [name for name in names]"]
    trimmed = headjax.trim_vocabulary(model, texts)
    kept = trimmed.history[-1]["kept"]
    assert trimmed.num_parameters < model.num_parameters
    for text in texts:
        assert trimmed.tokenizer.backend.encode(text).tokens == model.tokenizer.backend.encode(text).tokens
        ours, theirs = outputs(trimmed, text), outputs(model, text)
        np.testing.assert_array_equal(ours.hidden, theirs.hidden)
        assert_close(ours.logits, theirs.logits[..., np.array(kept)], sums=model.config.width)
    assert trimmed.tokenizer.decode(trimmed.tokenizer.encode("Unseen é")) == "Unseen é"


def test_parts_that_no_text_is_merged_of_go():
    """Tokenizers of SentencePiece (Llama, Gemma) list every pair of tokens that makes a token."""
    pieces = [*"abcdx", "ab", "cd", "bc", "abc", "bcd", "abcd", "dx"]
    pairs = ["ab", "cd", "bc", "abc", "bcd", "abcd", "dx"]
    merges = [
        (piece[:at], piece[at:]) for piece in pairs for at in range(1, len(piece))
        if {piece[:at], piece[at:]} <= {*pieces}
    ]  # fmt: skip
    bpe = tokenizers.models.BPE({piece: number for number, piece in enumerate(pieces)}, merges)
    tokenizer = headjax.Tokenizer(tokenizers.Tokenizer(bpe).to_str())
    model = model_of(CONFIGS["llama"]).replace(tokenizer=tokenizer)
    trimmed = headjax.trim_vocabulary(model, ["abcdab", "xab"])
    assert [pieces[old] for old in trimmed.history[-1]["kept"]] == [*"abcdx", "ab", "cd", "abcd"]
    for text in ("abcdab", "xabcd", "abab", "cab"):
        assert trimmed.tokenizer.backend.encode(text).tokens == tokenizer.backend.encode(text).tokens


def test_the_command_trims_and_writes_what_reads_alike(tmp_path, capsys):
    model = model_of(BERT).replace(tokenizer=bert().tokenizer)
    headjax.to_huggingface(model, tmp_path / "hf")
    (tmp_path / "corpus.txt").write_text("a good film\nany\n")
    rows = (f"a good film {text}\t{label}\n" for text in ("any", "x", "good") for label in range(3))
    (tmp_path / "films.tsv").write_text("sentence\tlabel\n" + "".join(rows) * 2)
    words = ["shrink", tmp_path / "hf", tmp_path / "out", "--vocabulary", tmp_path / "corpus.txt", "--json", "-"]
    assert main([*map(str, words), "--task", str(tmp_path / "films.tsv"), "--length", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    again = headjax.from_huggingface(tmp_path / "out")
    assert found["parameters"] == again.num_parameters < found["parameters_before"]
    assert again.tokenizer.vocab_size == 12
    assert set(found["metrics"]) >= {"accuracy", "loss"}
    np.testing.assert_array_equal(outputs(again, "any film").hidden, outputs(model, "any film").hidden)
