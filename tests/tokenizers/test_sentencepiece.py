import json
import sys

import pytest

from headjax.core.errors import DataError
from headjax.data.examples import encode_sequences
from headjax.tokenizers.files import read_tokenizer
from headjax.tokenizers.sentencepiece import byte_fallback_tokenizer
from headjax.tokenizers.tokenizer import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")

TEXTS = ["the cat sat on the mat, the dog sat by the log\nthe rat ran at the cat", "été à la plage, (no) rain"] * 4


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


def of_family(folder, family):
    """The tokenizer of a directory that its config says is of this family."""
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return read_tokenizer(folder)


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


def test_a_file_of_other_rules_is_named(tmp_path):
    file = tmp_path / "tokenizer.model"
    file.write_bytes(b"no model")
    with pytest.raises(DataError, match=rf"^{file}: not a SentencePiece model$"):
        of_family(tmp_path, "llama")
    for options in ({}, PAIRS | {"user_defined_symbols": ["<x>"]}):
        write_model(file, **options)
        with pytest.raises(DataError, match=rf"^{file}: its rules are not those of its family"):
            of_family(tmp_path, "llama")


def test_the_library_may_be_missing(llama, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
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
