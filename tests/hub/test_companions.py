"""Files beside config and weights: carried through everything that is done with a model, and given back unchanged."""

import json

import pytest

import headjax
from headjax.hub.families import CODE
from headjax.hub.sentences import task_files
from headjax.initialization import ModelSource
from headjax.tokenizers.vocabularies import wordpiece_of
from tests import tiny
from tests.closeness import assert_close
from tests.hub.directories import BERT, CONFIGS, model_of
from tests.tokenizers.directories import TEXTS, wordpieces

COMPANIONS = {
    "README.md": "# A model\n",
    "LICENSE": "Do what you like.\n",
    "generation_config.json": '{"eos_token_id": [1, 5], "repetition_penalty": 1.2}',
    "chat_template.jinja": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    "additional_chat_templates/tools.jinja": "{{ tools }}",
    "preprocessor_config.json": '{"image_mean": [0.1, 0.2, 0.3]}',
    "added_tokens.json": '{"[ENT]": 15}',
}
WEIGHTS = {"1_Pooling/pytorch_model.bin": "weights", "notes.txt": "mine"}


@pytest.fixture
def theirs(tmp_path):
    """A Hugging Face directory with a vocabulary and other files."""
    folder = tmp_path / "theirs"
    headjax.to_huggingface(model_of(BERT), folder)
    config = json.loads((folder / "config.json").read_text())
    wordpieces(folder)
    (folder / "config.json").write_text(json.dumps(config))
    for name, text in (COMPANIONS | WEIGHTS).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def contents(folder):
    names = ("config.json", "model.safetensors", *CODE)
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name not in names
    }


def test_they_come_back_unchanged(theirs, tmp_path):
    expected = {name: data for name, data in contents(theirs).items() if name not in WEIGHTS}
    assert {"vocab.txt", "tokenizer_config.json", *COMPANIONS} == expected.keys()
    headjax.prune(headjax.from_huggingface(theirs), ["encoder/0/1"]).save(tmp_path / "model")
    loaded = headjax.load(tmp_path / "model")
    headjax.to_huggingface(
        headjax.with_task(loaded, headjax.tasks.Classification(classes=2)), tmp_path / "back", "padded"
    )
    assert contents(tmp_path / "back") == expected
    assert ModelSource(start=str(tmp_path / "model")).trained(seed=0).files == loaded.files
    assert headjax.from_huggingface(tmp_path / "back").tokenizer == loaded.tokenizer


def test_another_tokenizer_replaces_the_files_of_the_first(theirs, tmp_path):
    model = headjax.from_huggingface(theirs)
    for changed in (model.replace(tokenizer=headjax.byte_tokenizer()), model):
        headjax.to_huggingface(changed, tmp_path / "out")  # an earlier export is replaced
        again = headjax.from_huggingface(tmp_path / "out").tokenizer
        assert [again.prompt_ids(text) for text in TEXTS] == [changed.tokenizer.prompt_ids(text) for text in TEXTS]
        assert (tmp_path / "out" / "vocab.txt").exists() == (changed is model)
        assert (tmp_path / "out" / "README.md").read_text() == COMPANIONS["README.md"]
    headjax.to_huggingface(model.replace(tokenizer=None), tmp_path / "out")
    assert not (tmp_path / "out" / "vocab.txt").exists()


@pytest.mark.parity
@pytest.mark.filterwarnings("default")
def test_sentence_transformers_loads_the_graph_of_a_ragged_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("USE_TF", "0")
    pytest.importorskip("onnx")
    pytest.importorskip("optimum.onnxruntime", reason="needs optimum-onnx", exc_type=ImportError)
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = model_of(CONFIGS["bert"])
    tokenizer = wordpiece_of(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"], "vocab")
    files = task_files(headjax.tasks.SentenceSimilarity(), 8)
    model = headjax.prune(model, ["encoder/0/1"]).replace(tokenizer=tokenizer, files=files)
    headjax.to_huggingface(model, tmp_path / "out", "onnx")
    found = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), backend="onnx", device="cpu")
    for text in ("a b", "c a d e"):
        hidden = model({name: array.numpy() for name, array in found.tokenize([text]).items()}).hidden
        assert_close(found.encode([text]), hidden.mean(axis=1), sums=tiny.SUMS)
