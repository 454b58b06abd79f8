"""Directories that hold model files of SentencePiece alone."""

import json
import subprocess
import sys

import pytest

import headjax
from headjax.data.examples import encode_sequences
from tests.tokenizers.directories import auto, describe

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")

TEXTS = ["the cat sat on the mat, the dog sat by the log\nthe rat ran at the cat", "été à la plage, (no) rain"] * 4
GERMAN = ["die Katze saß auf der Matte, der Hund saß am Klotz", "die Ratte lief zur Katze"] * 4
READ = [*TEXTS[:2], "  two  spaces ", "new\nlines\n\n", "была 🙂", "a <s> b</s>c", ""]


def write_model(path, texts=TEXTS, size=60, **options):
    """A model file that the library trains."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=file,
            vocab_size=size,
            minloglevel=2,
            hard_vocab_limit=False,
            **options,
        )
    return path


PAIRS = {
    "model_type": "bpe", "byte_fallback": True, "size": 330, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}  # fmt: skip
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
FILES = {
    "llama": ("tokenizer.model", "LlamaTokenizer", PAIRS),
    "mistral": ("tokenizer.model", None, PAIRS),
    "gemma2": ("tokenizer.model", "GemmaTokenizer", PAIRS | {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}),
    "t5": ("spiece.model", "T5Tokenizer", T5),
    "albert": (
        "spiece.model",
        "AlbertTokenizer",
        {"control_symbols": "[CLS],[SEP],[MASK]", "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
    ),
    "xlm-roberta": ("sentencepiece.bpe.model", "XLMRobertaTokenizer", {}),
    "camembert": ("sentencepiece.bpe.model", None, {}),
}


@pytest.mark.parametrize("family", FILES)
def test_files_are_read_as_transformers_reads_them(tmp_path, family):
    name, kind, options = FILES[family]
    numbers = {"pad_id": 3, **options} if family in ("llama", "mistral") else options
    write_model(tmp_path / name, **numbers)
    describe(tmp_path, family, kind)
    ours, theirs = headjax.read_tokenizer(tmp_path), auto(tmp_path)
    for text in READ:
        assert ours.prompt_ids(text) == theirs(text)["input_ids"], text
    assert dict(ours.special) == theirs.special_tokens_map


def test_a_file_of_something_else_is_one_line(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    describe(tmp_path, "llama")
    with pytest.raises(headjax.DataError, match=rf"^{tmp_path}: AutoTokenizer of transformers: [^\n]*$"):
        headjax.read_tokenizer(tmp_path)


@pytest.fixture
def marian(tmp_path):
    pieces = {}
    for name, texts in (("source.spm", TEXTS), ("target.spm", GERMAN)):
        library = sentencepiece.SentencePieceProcessor(model_file=str(write_model(tmp_path / name, texts)))
        pieces |= {library.id_to_piece(number): None for number in range(3, library.get_piece_size())}
    tokens = ["</s>", "<unk>", *reversed(pieces), ">>deu<<", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    describe(tmp_path, "marian", "MarianTokenizer", source_lang="eng", target_lang="deu", model_max_length=512)
    return tmp_path


def test_marian_cuts_each_language_by_its_own_file(marian):
    ours, theirs = headjax.read_tokenizer(marian), auto(marian)
    texts = [*TEXTS, "the rat sat on  the dog", ">>deu<< the cat"]
    found = [ids.tolist() for ids in encode_sequences(ours, texts, max_length=100_000)["input_ids"]]
    assert found == theirs(texts)["input_ids"]
    found = [[*ids.tolist(), 0] for ids in ours.for_targets.encode(GERMAN)]
    assert found == theirs(text_target=GERMAN)["input_ids"]
    assert ours.decode(ours.encode("the cat sat, été")) == "the cat sat, été"
    assert ours.encode("die Katze").tolist() != ours.for_targets.encode("die Katze").tolist()
    assert ours.max_length == ours.for_targets.max_length == 512
    ours.save(marian / "saved")
    assert headjax.Tokenizer.load(marian / "saved") == ours
    describe(marian / "saved", "marian", "PreTrainedTokenizerFast")
    assert headjax.read_tokenizer(marian / "saved").for_targets.prompt_ids("die Katze") == ours.for_targets.prompt_ids(
        "die Katze"
    )


@pytest.mark.parametrize(
    ("tokens", "said"), [('{"</s>": 0, "<unk>": 1, "<pad>": 5}', "its ids"), ('{"</s>": 0, "<unk>": 1}', "no <pad>")]
)
def test_a_vocabulary_of_marian_that_is_none_is_named(marian, tokens, said):
    (marian / "vocab.json").write_text(tokens)
    with pytest.raises(headjax.DataError, match=rf"^{marian}/vocab.json: {said}"):
        headjax.read_tokenizer(marian)


def test_the_library_may_be_missing(marian):
    (marian / "tokenizer.model").write_bytes((marian / "source.spm").read_bytes())
    code = """
import sys
sys.modules["sentencepiece"] = None
import headjax
for family in ("marian", "llama"):
    open(sys.argv[1] + "/config.json", "w").write('{"model_type": "%s"}' % family)
    try:
        headjax.read_tokenizer(sys.argv[1])
    except headjax.HeadjaxError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(marian)], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2, done.stdout
    assert all(line.startswith(f"{marian}: ") and "sentencepiece" in line for line in done.stdout.splitlines())
