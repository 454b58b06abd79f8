import itertools
import json
import sys

import pytest

from headjax.core.errors import ConfigError, DataError
from headjax.data.examples import encode_sequences
from headjax.tokenizers.files import read_tokenizer
from headjax.tokenizers.sentencepiece import byte_fallback_tokenizer, train_sentencepiece, unigram_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer

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


def processor(path):
    """The library's own tokenizer of a file."""
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def unigram(path):
    return unigram_tokenizer(str(path), path.read_bytes())


def of_family(folder, family):
    """The tokenizer of a directory that its config says is of this family."""
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return read_tokenizer(folder)


def lines(data_dir, count):
    """Real lines: news, an encyclopedia with foreign scripts, German, and a book."""
    files = ("lm/lm1b_heldout.dev.tokens", "lm/wikitext-2-raw/wiki.valid.raw", "mt/newstest/newstest2013.de")
    found = [(data_dir / name).read_text(encoding="utf-8").split("\n")[: count // 4] for name in files]
    book = (data_dir / "lm" / "gutenberg" / "dracula.txt").read_text(encoding="utf-8").split("\n")
    return list(itertools.chain(*found, book[: count // 4]))


@pytest.mark.whole
@pytest.mark.parametrize("name", [T5, ALBERT, "test_sentencepiece_1k.model"])
def test_real_lines_are_cut_as_the_library_cuts_them(data_dir, name):
    path = data_dir / "vocab" / name
    texts = lines(data_dir, 10_000)
    found = [ids.tolist() for ids in unigram(path).encode(texts)]
    different = [each for each in zip(processor(path).encode(texts), found, strict=True) if each[0] != each[1]]
    assert len(different) <= 1
    for theirs, ours in different:  # a tie: m + mm or mm + m
        assert sorted(theirs) == sorted(ours)


def test_a_vocabulary_is_learned_and_saved(tmp_path):
    tokenizer = train_sentencepiece(TEXTS, 33)
    assert tokenizer.vocab_size == 33
    assert [tokenizer.special_id(role) for role in ("pad_token", "eos_token", "unk_token")] == [0, 1, 2]
    assert dict(tokenizer.special) == {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    assert tokenizer == train_sentencepiece(TEXTS, 33)
    (ids,) = tokenizer.encode(["the  été\n"])
    assert tokenizer.decode(ids) == "the été"
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).encode(["the été"])[0].tolist() == ids.tolist()
    long = "the cat sat on the mat " * 400 + "Ω"  # of which the library by itself learns nothing
    assert "Ω" in train_sentencepiece([*TEXTS, long], 34).backend.get_vocab()
    with pytest.raises(DataError, match=r"^vocab_size: the text does not yield 5000 pieces: "):
        train_sentencepiece(TEXTS, 5000)
    with pytest.raises(ConfigError, match=r"^vocab_size: must be at least 4"):
        train_sentencepiece(TEXTS, 3)


IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
PAIRS = {"model_type": "bpe", "byte_fallback": True, "size": 310, "hard_vocab_limit": False, **IDENTITY}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    texts = [f"{text} {number * 7919}" for number in range(20) for text in TEXTS]
    write_model(folder / "tokenizer.model", texts, **PAIRS | {"size": 330, "hard_vocab_limit": True})
    return folder


def test_llama_falls_back_to_bytes(llama):
    tokenizer = of_family(llama, "llama")
    library = processor(llama / "tokenizer.model")
    texts = [*TEXTS, "  two  spaces ", "new\nlines\n\n", "была 🙂", "<0x0A> <s> </s>", "", "the79190rat"]
    assert [ids.tolist() for ids in tokenizer.encode(texts)] == library.encode(texts)
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(texts)] == texts
    assert encode_sequences(tokenizer, ["the"], max_length=8).ids[0].tolist() == [1, *library.encode("the")]
    ended = byte_fallback_tokenizer(llama / "tokenizer.model", start=False, end=True)
    assert encode_sequences(ended, ["the"], max_length=8).ids[0].tolist() == [*library.encode("the"), 2]


def damaged(change):
    """A model file whose message is changed."""

    def make(path):
        from sentencepiece import sentencepiece_model_pb2

        message = sentencepiece_model_pb2.ModelProto()
        message.ParseFromString(write_model(path).read_bytes())
        change(message)
        path.write_bytes(message.SerializeToString())

    return make


def of_options(**options):
    return lambda path: write_model(path, **options)


BROKEN = [
    (unigram, lambda path: path.write_bytes(b"no model"), "not a SentencePiece model"),
    (unigram, of_options(model_type="bpe"), "only unigram models"),
    (unigram, of_options(remove_extra_whitespaces=False), "its rules for white space"),
    (unigram, damaged(lambda each: setattr(each.normalizer_spec, "precompiled_charsmap", b"\1")), ""),
    (unigram, damaged(lambda each: setattr(each.pieces[5], "score", float("nan"))), "piece "),
    (byte_fallback_tokenizer, of_options(), "only byte pairs with byte fallback"),
    (byte_fallback_tokenizer, of_options(**PAIRS, user_defined_symbols=["<x>"]), "user-defined pieces"),
]


@pytest.mark.parametrize(("read", "make", "said"), BROKEN)
def test_a_broken_file_is_named(tmp_path, read, make, said):
    file = tmp_path / "tokenizer.model"
    make(file)
    with pytest.raises(DataError, match=rf"^{file}: {said}[^\n]*$"):
        read(file)


def test_the_library_may_be_missing(llama, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(DataError, match=r"^sentencepiece: not installed"):
        of_family(llama, "llama")


GERMAN = ["die Katze saß auf der Matte, der Hund saß am Klotz", "die Ratte lief zur Katze"] * 4


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    pieces = {}
    for name, texts in (("source.spm", TEXTS), ("target.spm", GERMAN)):
        library = processor(write_model(folder / name, texts, 60, hard_vocab_limit=False))
        pieces |= {library.id_to_piece(number): None for number in range(3, library.get_piece_size())}
    tokens = ["</s>", "<unk>", *reversed(pieces), ">>deu<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    return folder


def test_marian_cuts_each_language_by_its_own_file(marian, tmp_path):
    tokenizer = of_family(marian, "marian")
    numbers = json.loads((marian / "vocab.json").read_text())
    german = "die Katze saß"
    for name, one, text in (
        ("source.spm", tokenizer, "the cat sat, été"),
        ("target.spm", tokenizer.for_targets, german),
    ):
        expected = [numbers.get(piece, 1) for piece in processor(marian / name).encode(text, out_type=str)]
        assert one.encode([text])[0].tolist() == expected
        assert tokenizer.decode(expected) == text
    assert tokenizer.encode(german).tolist() != tokenizer.for_targets.encode(german).tolist()
    coded = encode_sequences(tokenizer, [">>deu<< the cat"], max_length=32).ids[0].tolist()
    assert coded == [numbers[">>deu<<"], *tokenizer.encode(["the cat"])[0].tolist(), 0]
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path) == tokenizer
    (marian / "vocab.json").write_text('{"</s>": 0, "<unk>": 1, "<pad>": 5}')
    with pytest.raises(DataError, match=r"vocab\.json: its ids"):
        read_tokenizer(marian)
    (marian / "vocab.json").write_text(json.dumps(numbers))


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("family", ["Llama", "Marian"])
def test_directories_are_read_as_transformers_reads_them(llama, marian, family):
    import transformers

    folder = {"Llama": llama, "Marian": marian}[family]
    texts = [*TEXTS, "the rat sat on  the dog"]
    ours = of_family(folder, family.lower())
    started = {"add_bos_token": True} if family == "Llama" else {}
    theirs = getattr(transformers, f"{family}Tokenizer").from_pretrained(folder, **started)
    found = [ids.tolist() for ids in encode_sequences(ours, texts, max_length=100_000).ids]
    assert found == theirs(texts)["input_ids"]
    if family == "Marian":
        found = [[*ids.tolist(), 0] for ids in ours.for_targets.encode(GERMAN)]
        assert found == theirs(text_target=GERMAN)["input_ids"]
