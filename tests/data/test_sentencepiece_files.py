from __future__ import annotations

import itertools
import json
import sys

import pytest

from headjax.data.encoding import encode_sequences
from headjax.data.sentencepiece_files import sentencepiece_tokenizer, train_sentencepiece
from headjax.data.tokenizer_files import read_tokenizer
from headjax.data.tokenizers import Tokenizer
from headjax.errors import ConfigError, DataError

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")

TEXTS = ["the cat sat on the mat, the dog sat by the log\nthe rat ran at the cat", "été à la plage, (no) rain"] * 4
T5, ALBERT = "t5_sentencepiece_cc_all.32000.100extra.model", "albert_spiece.model"


def write_model(path, texts=TEXTS, size=32, **options):
    """A model file that the library trains."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=file, vocab_size=size, minloglevel=2, **options
        )
    return path


def lines(data_dir, count):
    """Real lines: news, an encyclopedia with foreign scripts, German, and a book."""
    files = ("lm/lm1b_heldout.dev.tokens", "lm/wikitext-2-raw/wiki.valid.raw", "mt/newstest/newstest2013.de")
    found = [(data_dir / name).read_text(encoding="utf-8").split("\n")[: count // 4] for name in files]
    book = (data_dir / "lm" / "gutenberg" / "dracula.txt").read_text(encoding="utf-8").split("\n")
    return list(itertools.chain(*found, book[: count // 4]))


@pytest.mark.parametrize("name", [T5, ALBERT, "test_sentencepiece_1k.model"])
def test_real_lines_are_cut_as_the_library_cuts_them(data_dir, name):
    path = data_dir / "vocab" / name
    texts = lines(data_dir, 10_000)
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pairs = zip(
        library.encode(texts), (ids.tolist() for ids in sentencepiece_tokenizer(path).encode(texts)), strict=True
    )
    different = [(theirs, ours) for theirs, ours in pairs if theirs != ours]
    assert len(different) <= 1
    for theirs, ours in different:  # a tie: m + mm or mm + m
        assert sorted(theirs) == sorted(ours)


def test_families_add_their_own(tmp_path):
    path = write_model(tmp_path / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    plain = sentencepiece_tokenizer(path)
    assert dict(plain.special) == {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    t5 = read_tokenizer(tmp_path)
    assert t5.vocab_size == plain.vocab_size + 100
    assert t5.backend.token_to_id("<extra_id_0>") == t5.vocab_size - 1
    ids = encode_sequences(t5, ["the cat"], ["sat"], max_length=16).ids[0].tolist()
    halves = [half.tolist() for half in plain.encode(["the cat", "sat"])]
    assert ids == [*halves[0], 1, *halves[1], 1]
    assert t5.decode(plain.encode(["the cat sat"])[0]) == "the cat sat"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    assert read_tokenizer(tmp_path) is None


def test_albert_lowers_case_and_takes_commas_off_numbers(data_dir):
    tokenizer = sentencepiece_tokenizer(data_dir / "vocab" / ALBERT, "albert")
    ids = encode_sequences(tokenizer, ["Áreas 2000, and"], max_length=16).ids[0]
    tokens = [tokenizer.backend.id_to_token(int(number)) for number in ids]
    assert tokens == ["[CLS]", "▁areas", "▁2000", ",", "▁and", "[SEP]"]


def test_a_vocabulary_is_learned_and_saved(tmp_path):
    tokenizer = train_sentencepiece(TEXTS, 33)
    assert tokenizer.vocab_size == 33
    assert [tokenizer.special_id(role) for role in ("pad_token", "eos_token", "unk_token")] == [0, 1, 2]
    assert tokenizer == train_sentencepiece(TEXTS, 33)
    (ids,) = tokenizer.encode(["the  été\n"])
    assert tokenizer.decode(ids) == "the été"
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).encode(["the été"])[0].tolist() == ids.tolist()
    with pytest.raises(DataError, match=r"^vocab_size: the text does not yield 5000 pieces: "):
        train_sentencepiece(TEXTS, 5000)
    with pytest.raises(ConfigError, match=r"^vocab_size: must be at least 4"):
        train_sentencepiece(TEXTS, 3)


def test_unusual_files_are_named(tmp_path, monkeypatch):
    broken = tmp_path / "broken.model"
    broken.write_bytes(b"no model")
    with pytest.raises(DataError, match=rf"^{broken}: not a SentencePiece model$"):
        sentencepiece_tokenizer(broken)
    pairs = write_model(tmp_path / "bpe.model", model_type="bpe")
    with pytest.raises(DataError, match=rf"^{pairs}: only unigram models without byte fallback"):
        sentencepiece_tokenizer(pairs)
    spaces = write_model(tmp_path / "spaces.model", remove_extra_whitespaces=False)
    with pytest.raises(DataError, match=rf"^{spaces}: it treats white space in an unusual way"):
        sentencepiece_tokenizer(spaces)
    other = write_model(tmp_path / "other.model")
    with pytest.raises(DataError, match=rf"^{other}: no piece \[CLS\]"):
        sentencepiece_tokenizer(other, "albert")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(DataError, match=r"^sentencepiece: not installed: pip install 'headjax\[sentencepiece\]'$"):
        sentencepiece_tokenizer(other)


@pytest.mark.parity
def test_a_directory_is_read_as_transformers_reads_it(data_dir, tmp_path):
    """T5's, with the numbers of special tokens that `transformers` takes for granted.

    Not ALBERT's: `transformers` 5 prefers other ways to cut at its punctuation than the library does.
    """
    import transformers

    texts = lines(data_dir, 2000)
    write_model(tmp_path / "spiece.model", texts, size=800, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    theirs = transformers.T5Tokenizer.from_pretrained(tmp_path)
    found = encode_sequences(read_tokenizer(tmp_path), texts, max_length=100_000).ids
    expected = theirs(texts)["input_ids"]
    assert [text for text, ids, ours in zip(texts, expected, found, strict=True) if ids != ours.tolist()] == []
