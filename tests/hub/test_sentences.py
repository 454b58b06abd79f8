"""Directories of sentence-transformers: what they compute, whatever is not read refused by name, and the way back."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import headjax
from headjax.core.errors import ConfigError, HeadjaxError, ParameterError
from headjax.evaluation.predictions import Inputs, predict
from headjax.evaluation.specs import load_task
from headjax.evaluation.task import measure_task
from headjax.heads.pruning import prune
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.checking import max_difference
from headjax.hub.importing import config_of
from headjax.hub.sentences import task_files
from headjax.models.new_task import with_task
from headjax.models.tasks import Classification, Dense, SentenceSimilarity
from headjax.tokenizers.learned import byte_tokenizer
from tests.data.vocabulary import write_lines
from tests.hub.directories import CONFIGS, model_of, refused_export
from tests.hub.test_companions import contents
from tests.tokenizers.test_settings import wordpieces

DENSE = (Dense(size=6), Dense(size=4, activation=None, bias=False))
MAPPED = SentenceSimilarity(pooling=("max", "cls"), dense=DENSE, normalize=True, similarity="dot", max_seq_length=7)
PADDED = (("eos_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>"))
MODULES = ["", "1_Pooling", "2_Normalize"]


def modules(*places, package="sentence_transformers.models"):
    kinds = [place.rpartition("_")[2] or "Transformer" for place in places]
    return [{"type": f"{package}.{kind}", "path": place} for kind, place in zip(kinds, places, strict=True)]


def directory(folder, files):
    to_huggingface(model_of(CONFIGS["bert"]), folder)
    for name, data in ({"modules.json": modules(*MODULES)} | files).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return folder


POOLING, SETTINGS, TEXTS = "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"
READ = [
    ({POOLING: {"pooling_mode": "cls"}}, {"pooling": ("cls",)}),
    ({POOLING: {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}}, {"pooling": ("cls",)}),
    (
        {
            POOLING: {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            SETTINGS: {"prompts": {"a": ""}},
        },
        {"pooling": ("max", "mean")},
    ),
    (
        {POOLING: {"pooling_mode": ["mean", "lasttoken"], "include_prompt": False}},
        {"pooling": ("mean", "lasttoken"), "include_prompt": False},
    ),
    (
        {SETTINGS: {"similarity_fn_name": "manhattan", "prompts": {"query": "q: "}, "default_prompt_name": "query"}},
        {"similarity": "manhattan", "prompts": {"query": "q: "}, "default_prompt_name": "query"},
    ),
    ({TEXTS: {"max_seq_length": 7}, "tokenizer_config.json": {"model_max_length": 5}}, {"max_seq_length": 7}),
    ({"tokenizer_config.json": {"model_max_length": 5}}, {"max_seq_length": 5}),
]


@pytest.mark.parametrize(("files", "fields"), READ)
def test_what_files_describe(files, fields, tmp_path):
    found = config_of(directory(tmp_path / "st", files)).task
    assert found == SentenceSimilarity(**{"normalize": True} | fields)


REFUSED = [
    ({POOLING: {"pooling_mode": "attention"}}, "1_Pooling/config.json: pooling_mode: 'attention'"),
    (
        {"modules.json": modules("", "1_Pooling", "2_LSTM")},
        "modules.json: the module sentence_transformers.models.LSTM",
    ),
    ({"modules.json": modules(*MODULES, package="mine")}, "modules.json: the module mine.Transformer at"),
    ({"modules.json": modules("", "1_Pooling", "2_Normalize", "3_Dense")}, "Pooling, Normalize, Dense is not"),
    (
        {"modules.json": modules("", "1_Pooling", "Dense")},
        "modules.json: the module .*Dense at 'Dense'",
    ),
    ({"modules.json": {}}, "modules.json: expected a list"),
    (
        {
            "modules.json": modules("", "1_Pooling", "2_Dense"),
            "2_Dense/config.json": {"activation_function": "torch.exp"},
        },
        "2_Dense/config.json: activation_function: 'torch.exp'",
    ),
    ({SETTINGS: {"prompts": {"a": "b"}, "default_prompt_name": "query"}}, "default_prompt_name: 'query'"),
    ({SETTINGS: {"similarity_fn_name": "angle"}}, "similarity_fn_name: 'angle'"),
    ({TEXTS: {"processing_kwargs": {"text": {"padding": "max_length"}}}}, "processing_kwargs"),
]


@pytest.mark.parametrize(("files", "said"), REFUSED)
def test_a_pipeline_that_computes_something_else_is_refused(files, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        from_huggingface(directory(tmp_path / "st", files))


def test_files_stay_and_are_written_anew_for_another_task(tmp_path):
    bert, files = CONFIGS["bert"], {POOLING: {"pooling_mode": "cls"}, SETTINGS: {"prompts": {"query": "query: "}}}
    model = from_huggingface(directory(tmp_path / "st", files))
    to_huggingface(model, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "st")
    to_huggingface(with_task(model, Classification(classes=2)), tmp_path / "out")
    assert contents(tmp_path / "out") == {}
    to_huggingface(with_task(model, MAPPED), tmp_path / "out")
    weights = {name: load_file(tmp_path / "out" / name / "model.safetensors") for name in ("2_Dense", "3_Dense")}
    assert {name: array.shape for name, array in weights["2_Dense"].items()} == {
        "linear.weight": (6, 2 * bert["hidden_size"]), "linear.bias": (6,),
    }  # fmt: skip
    assert [*weights["3_Dense"]] == ["linear.weight"]
    again = from_huggingface(tmp_path / "out")
    assert again.config.task == MAPPED
    for dense in ((Dense(size=2),) * 4, (Dense(size=2, activation="gelu_tanh"),)):
        said = refused_export(with_task(model, dataclasses.replace(MAPPED, dense=dense)), tmp_path / "no")
        assert said.startswith("task.dense: at most 3 maps")
    save_file({"linear.weight": np.zeros((6, 3), np.float32)}, tmp_path / "out" / "2_Dense" / "model.safetensors")
    with pytest.raises(ParameterError, match=r"2_Dense/model.safetensors: not the tensors"):
        from_huggingface(tmp_path / "out")


def test_a_smaller_model_keeps_its_vectors(tmp_path):
    """Through removal of heads, both kinds of directory and the code of an export."""
    model = with_task(model_of(CONFIGS["bert"]), MAPPED)
    pruned = prune(model, ["encoder/0/1", "encoder/1/2"])
    assert pruned.params["output"].keys() == {"dense_0", "dense_1"}
    pruned.save(tmp_path / "model")
    loaded = headjax.load(tmp_path / "model")
    to_huggingface(loaded, tmp_path / "out")
    assert max_difference(loaded, tmp_path / "out") < 1e-6
    assert "HeadjaxModel" in (tmp_path / "out" / "config.json").read_text()


def test_an_encoder_decoder_is_refused(tmp_path):
    to_huggingface(model_of(CONFIGS["t5"]), tmp_path / "st")
    for name, data in task_files(SentenceSimilarity(), 8).items():
        (tmp_path / "st" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "st" / name).write_bytes(data)
    with pytest.raises(HeadjaxError, match=r"modules.json: sentence vectors of an? encoder_decoder"):
        from_huggingface(tmp_path / "st")


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_makes_vectors_of_its_last_tokens(tied, tmp_path):
    """As sentence-transformers does, which pads on the left, before and after removals; tied logits do not matter."""
    fields = CONFIGS["qwen3"] | {"vocab_size": 300, "tie_word_embeddings": tied}
    base = model_of(fields).replace(tokenizer=dataclasses.replace(byte_tokenizer(), special=PADDED))
    task = SentenceSimilarity(pooling=("lasttoken",), normalize=True)
    to_huggingface(with_task(base, task), tmp_path / "st")
    model = from_huggingface(tmp_path / "st")
    assert model.config.task == dataclasses.replace(task, max_seq_length=model.config.task.max_seq_length)
    assert max_difference(with_task(base, task), tmp_path / "st") < 1e-6
    prune(model, ["decoder/0/1", "decoder/1/2"]).save(tmp_path / "model")
    smaller = headjax.load(tmp_path / "model")
    to_huggingface(smaller, tmp_path / "out")
    assert max_difference(smaller, tmp_path / "out") < 1e-6
    pytest.importorskip("sentence_transformers")
    assert_same(model, computed(tmp_path / "st"), tmp_path)
    assert_same(smaller, computed(tmp_path / "out"), tmp_path)


LIBRARY = {
    "cls": {"pooling": ("cls",), "normalize": True},
    "mapped": {
        "pooling": ("mean",), "dense": DENSE, "normalize": True, "similarity": "dot",
        "prompts": {"query": "人 sat", "document": "sat the "}, "default_prompt_name": "document",
    },
    "several": {"pooling": ("lasttoken", "max"), "similarity": "manhattan", "max_seq_length": 6},
    "prompted": {
        "pooling": ("cls", "mean", "mean_sqrt_len_tokens", "weightedmean"), "similarity": "euclidean",
        "prompts": {"query": "cat the "}, "default_prompt_name": "query", "include_prompt": False,
    },
}  # fmt: skip
FIRST, SECOND = ["the cats sat", "Cat", "sat sat the Cat 人有 the the the"], ["cat", "the sat the", "人 cats sat"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A directory of BERT with a vocabulary."""
    folder = tmp_path_factory.mktemp("base")
    to_huggingface(model_of(CONFIGS["bert"] | {"vocab_size": 30, "max_position_embeddings": 20}), folder)
    config = (folder / "config.json").read_bytes()
    wordpieces(folder)
    (folder / "config.json").write_bytes(config)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    return folder


def by_library(base, task, folder):
    """A directory that sentence-transformers wrote for a task, and what it computes."""
    pytest.importorskip("sentence_transformers")
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as parts

    torch.manual_seed(0)
    phi = {"tanh": torch.nn.Tanh(), None: None}
    sizes = task.sizes(CONFIGS["bert"]["hidden_size"])
    made = [
        parts.Transformer(str(base), max_seq_length=task.max_seq_length),
        parts.Pooling(CONFIGS["bert"]["hidden_size"], task.pooling, include_prompt=task.include_prompt),
        *(
            parts.Dense(size, dense.size, dense.bias, phi[dense.activation])
            for size, dense in zip(sizes, task.dense, strict=False)
        ),
        *([parts.Normalize()] if task.normalize else []),
    ]
    names = {"prompts": dict(task.prompts), "default_prompt_name": task.default_prompt_name or None}
    SentenceTransformer(modules=made, device="cpu", similarity_fn_name=task.similarity, **names).save(str(folder))
    if task.pooling == ("cls",):  # as BGE's, which the tokenizer does not do here
        reading = json.loads((folder / TEXTS).read_text())
        (folder / TEXTS).write_text(json.dumps(reading | {"do_lower_case": True}))
    return computed(folder)


def computed(folder):
    """Embeddings with the usual and with the query's prompt, and similarities, by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    first, second = model.encode(FIRST), model.encode(SECOND)
    asked, found = model.encode_query(FIRST), model.encode_document(SECOND)
    return first, model.similarity_pairwise(first, second).numpy(), model.similarity_pairwise(asked, found).numpy()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", LIBRARY)
def test_vectors_are_those_of_sentence_transformers(name, base, tmp_path):
    """As it wrote the directory; and by what is written here: unchanged, of fewer heads, in the names of version 2."""
    task = SentenceSimilarity(**LIBRARY[name])
    theirs = by_library(base, task, tmp_path / "st")
    model = from_huggingface(tmp_path / "st")
    assert dataclasses.replace(model.config.task, prompts=task.prompts, max_seq_length=None) == dataclasses.replace(
        task, max_seq_length=None
    )
    assert_same(model, theirs, tmp_path)
    smaller = prune(model, ["encoder/0/1", "encoder/1/2"]).replace(files={})
    smaller.save(tmp_path / "model")
    to_huggingface(headjax.load(tmp_path / "model"), tmp_path / "out")
    assert_same(smaller, computed(tmp_path / "out"), tmp_path)


def assert_same(model, theirs, folder):
    embeddings, alike, retrieved = theirs
    ours = [one["embedding"] for one in predict(model, Inputs(FIRST))]
    assert np.abs(np.asarray(ours) - embeddings).max() < 1e-5 < np.abs(embeddings[0] - embeddings[1]).max()
    for names, expected in {("sentence1", "sentence2"): alike, ("query", "text"): retrieved}.items():
        rows = ["\t".join((*pair, "1.0")) for pair in zip(FIRST, SECOND, strict=True)]
        path = write_lines(folder / f"{names[0]}.tsv", "\t".join((*names, "score")), *rows)
        kind = "similarity" if names[0] == "sentence1" else "retrieval"
        task = load_task(f"{kind}:{path}", model)
        assert np.abs(measure_task(model, task).outcomes["prediction"] - expected).max() < 2e-5, kind
