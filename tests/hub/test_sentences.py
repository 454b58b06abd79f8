"""Directories of sentence-transformers: what they compute, whatever is not read refused by name, and the way back."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import headjax
from headjax.evaluation.predictions import Inputs, predict
from headjax.hub.either import loading, read_config, read_model
from headjax.hub.importing import config_of
from headjax.hub.sentences import task_files
from tests.command_line import main
from tests.data.vocabulary import write_lines
from tests.hub.directories import BERT, CONFIGS, example_batch, max_difference, model_of, refused_export
from tests.hub.test_companions import contents
from tests.tokenizers.directories import wordpieces

DENSE = (headjax.tasks.Dense(size=6), headjax.tasks.Dense(size=4, activation=None, bias=False))
MAPPED = headjax.tasks.SentenceSimilarity(
    pooling=("max", "cls"), dense=DENSE, normalize=True, similarity="dot", max_seq_length=7
)
PADDED = (("eos_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>"))
MODULES = ["", "1_Pooling", "2_Normalize"]


def modules(*places, package="sentence_transformers.models"):
    kinds = [place.rpartition("_")[2] or "Transformer" for place in places]
    return [{"type": f"{package}.{kind}", "path": place} for kind, place in zip(kinds, places, strict=True)]


def directory(folder, files):
    headjax.to_huggingface(model_of(CONFIGS["bert"]), folder)
    for name, data in ({"modules.json": modules(*MODULES)} | files).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return folder


POOLING, SETTINGS, TEXTS = "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
READ = [
    ({POOLING: {"pooling_mode": "cls"}}, {"pooling": ("cls",)}),
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
    ({SETTINGS: {"truncate_dim": 3, "model_type": "SentenceTransformer", "__version__": {}}}, {"truncate_dim": 3}),
    ({TEXTS: {"modality_config": {"text": TEXT}, "model_args": {"add_pooling_layer": False}}}, {}),
]


@pytest.mark.parametrize(("files", "fields"), READ)
def test_what_files_describe(files, fields, tmp_path):
    found = config_of(directory(tmp_path / "st", files)).task
    assert found == headjax.tasks.SentenceSimilarity(**{"normalize": True} | fields)


REFUSED = [
    ({POOLING: {"pooling_mode": "attention"}}, "1_Pooling/config.json: pooling_mode: 'attention'"),
    (
        {"modules.json": modules("", "1_Pooling", "2_LSTM")},
        "modules.json: the module sentence_transformers.models.LSTM",
    ),
    ({"modules.json": modules(*MODULES, package="mine")}, "modules.json: the module mine.Transformer at"),
    ({"modules.json": modules("", "1_Pooling", "2_Normalize", "3_Dense")}, "Pooling, Normalize, Dense is not"),
    ({"modules.json": modules("", "1_Pooling", "Dense")}, "modules.json: the module .*Dense at 'Dense'"),
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
    ({TEXTS: {"modality_config": {"text": TEXT, "message": TEXT}}}, f"{TEXTS}: modality_config"),
    ({TEXTS: {"tokenizer_args": {"truncation_side": "left"}}}, f"{TEXTS}: tokenizer_args: truncation_side: 'left'"),
    ({SETTINGS: {"model_type": "SparseEncoder"}}, f"{SETTINGS}: model_type: 'SparseEncoder'"),
    ({"2_Normalize/config.json": {"module_input_name": "token_embeddings"}}, "2_Normalize/config.json: module_input"),
    (
        {"modules.json": modules("", "1_Pooling", "2_Dense"), "2_Dense/config.json": {"use_residual": True}},
        "2_Dense/config.json: use_residual",
    ),
]


@pytest.mark.parametrize(("files", "said"), REFUSED)
def test_a_pipeline_that_computes_something_else_is_refused(files, said, tmp_path):
    with pytest.raises(headjax.ConfigError, match=said):
        headjax.from_huggingface(directory(tmp_path / "st", files))


def test_a_transformer_in_a_folder_of_its_own_is_read_whole_and_written_flat(tmp_path):
    """As the first versions wrote it."""
    files = {TEXTS: {"max_seq_length": 7}, POOLING: {"pooling_mode": "cls"}}
    flat = headjax.from_huggingface(directory(tmp_path / "st", files))
    inner = tmp_path / "st" / "0_Transformer"
    inner.mkdir()
    for file in [path for path in (tmp_path / "st").iterdir() if path.is_file() and path.name != "modules.json"]:
        file.rename(inner / file.name)
    nested = modules("0_Transformer", *MODULES[1:])
    (tmp_path / "st" / "modules.json").write_text(json.dumps(nested))
    model = read_model(tmp_path / "st")
    assert model.config == flat.config == read_config(tmp_path / "st")
    assert max_difference(flat, tmp_path / "st") == 0.0
    headjax.to_huggingface(model, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "modules.json").read_text())[0]["path"] == ""
    assert max_difference(model, tmp_path / "out") == 0.0


SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
ALONE = {"modules.json": modules("")}
SCORES = [
    (ALONE, {}, {"activation": "sigmoid"}),
    (ALONE | {SETTINGS: {"activation_fn": IDENTITY}}, {"sentence_transformers": {"activation_fn": SIGMOID}}, {}),
    (ALONE | {TEXTS: {"max_seq_length": 7}}, {}, {"activation": "sigmoid", "max_seq_length": 7}),
    ({}, {}, {}),  # a directory of transformers alone
    (
        {"tokenizer_config.json": {"model_max_length": 5}},
        {"sentence_transformers": {"activation_fn": SIGMOID, "version": "5.0"}},
        {"activation": "sigmoid", "max_seq_length": 5},
    ),
    ({}, {"sbert_ce_default_activation_function": "torch.nn.Sigmoid"}, {"activation": "sigmoid"}),
]


def scores(folder, files, fields, labels=1):
    """A directory of BERT with so many labels, these files and these fields in its config."""
    headjax.to_huggingface(model_of(BERT | {"num_labels": labels}), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    for name, data in files.items():
        (folder / name).write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize(("files", "fields", "found"), SCORES)
def test_scores_of_a_cross_encoder(files, fields, found, tmp_path):
    """Read, written again by the same class and, of fewer heads, with our code."""
    model = read_model(scores(tmp_path / "ce", files, fields))
    assert model.config.task == headjax.tasks.Regression(**found)
    for each in (model, headjax.prune(model, ["encoder/0/1", "encoder/1/2"])):
        headjax.to_huggingface(each, tmp_path / "out")
        assert headjax.from_huggingface(tmp_path / "out").config.task == headjax.tasks.Regression(**found)
        assert max_difference(each, tmp_path / "out") < 1e-6
        name = "CrossEncoder" if files.keys() & ALONE or fields else "transformers"
        assert name in loading(tmp_path / "out")
    logits = with_plain_task(model)(batch := example_batch(model)).logits
    expected = 1.0 / (1.0 + np.exp(-logits)) if found.get("activation") else logits
    assert np.abs(model(batch).logits - expected).max() < 1e-6


def with_plain_task(model):
    return model.replace(config=dataclasses.replace(model.config, task=headjax.tasks.Regression()))


@pytest.mark.parametrize(
    ("files", "labels", "said"),
    [
        (ALONE | {SETTINGS: {"activation_fn": "torch.nn.modules.activation.Tanh"}}, 1, f"{SETTINGS}: activation_fn: "),
        (ALONE | {SETTINGS: {"activation_fn": SIGMOID}}, 3, f"{SETTINGS}: activation_fn: "),
        (ALONE | {TEXTS: {"transformer_task": "fill-mask"}}, 1, f"{TEXTS}: transformer_task: "),
    ],
)
def test_a_cross_encoder_that_computes_something_else_is_refused(files, labels, said, tmp_path):
    with pytest.raises(headjax.ConfigError, match=said):
        headjax.from_huggingface(scores(tmp_path / "ce", files, {}, labels))


def test_another_task_of_a_cross_encoder_leaves_its_activation_behind(tmp_path):
    fields = {"sentence_transformers": {"activation_fn": SIGMOID}}
    model = headjax.from_huggingface(scores(tmp_path / "ce", ALONE | {SETTINGS: {"activation_fn": SIGMOID}}, fields))
    headjax.to_huggingface(headjax.with_task(model, headjax.tasks.Classification(classes=3)), tmp_path / "out")
    assert "Sigmoid" not in "".join(file.read_text() for file in (tmp_path / "out").glob("*.json"))
    assert headjax.from_huggingface(tmp_path / "out").config.task == headjax.tasks.Classification(classes=3)
    assert "CrossEncoder" in loading(tmp_path / "out")


def test_labels_beyond_a_sigmoid_are_refused(base, tmp_path, capsys):
    plain = headjax.with_task(headjax.from_huggingface(base), headjax.tasks.Regression())
    headjax.to_huggingface(plain, tmp_path / "ce")
    (tmp_path / "ce" / "modules.json").write_text(json.dumps(modules("")))
    rows = write_lines(tmp_path / "a.tsv", "sentence1\tsentence2\tscore", "cat\tsat\t0.5", "the cat\tsat\t4.5")
    assert main(["finetune", str(tmp_path / "ce"), str(tmp_path / "out"), "--train", str(rows), "--steps", "1"]) == 2
    assert "a.tsv: row 3: the label 4.5 is not between 0 and 1" in capsys.readouterr().err


def test_files_stay_and_are_written_anew_for_another_task(tmp_path):
    bert, files = CONFIGS["bert"], {POOLING: {"pooling_mode": "cls"}, SETTINGS: {"prompts": {"query": "query: "}}}
    model = headjax.from_huggingface(directory(tmp_path / "st", files))
    headjax.to_huggingface(model, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "st")
    headjax.to_huggingface(headjax.with_task(model, headjax.tasks.Classification(classes=2)), tmp_path / "out")
    assert contents(tmp_path / "out") == {}
    headjax.to_huggingface(headjax.with_task(model, MAPPED), tmp_path / "out")
    weights = {name: load_file(tmp_path / "out" / name / "model.safetensors") for name in ("2_Dense", "3_Dense")}
    assert {name: array.shape for name, array in weights["2_Dense"].items()} == {
        "linear.weight": (6, 2 * bert["hidden_size"]), "linear.bias": (6,),
    }  # fmt: skip
    assert [*weights["3_Dense"]] == ["linear.weight"]
    again = headjax.from_huggingface(tmp_path / "out")
    assert again.config.task == MAPPED
    for dense in ((headjax.tasks.Dense(size=2),) * 4, (headjax.tasks.Dense(size=2, activation="gelu_tanh"),)):
        said = refused_export(headjax.with_task(model, dataclasses.replace(MAPPED, dense=dense)), tmp_path / "no")
        assert said.startswith("task.dense: at most 3 maps")
    save_file({"linear.weight": np.zeros((6, 3), np.float32)}, tmp_path / "out" / "2_Dense" / "model.safetensors")
    with pytest.raises(headjax.ParameterError, match=r"2_Dense/model.safetensors: not the tensors"):
        headjax.from_huggingface(tmp_path / "out")


def test_a_smaller_model_keeps_its_vectors(tmp_path):
    """Through removal of heads, both kinds of directory and the code of an export."""
    model = headjax.with_task(model_of(CONFIGS["bert"]), MAPPED)
    pruned = headjax.prune(model, ["encoder/0/1", "encoder/1/2"])
    assert pruned.params["output"].keys() == {"dense_0", "dense_1"}
    pruned.save(tmp_path / "model")
    loaded = headjax.load(tmp_path / "model")
    headjax.to_huggingface(loaded, tmp_path / "out")
    assert max_difference(loaded, tmp_path / "out") < 1e-6
    assert "HeadjaxModel" in (tmp_path / "out" / "config.json").read_text()


def test_an_encoder_decoder_is_refused(tmp_path):
    headjax.to_huggingface(model_of(CONFIGS["t5"]), tmp_path / "st")
    for name, data in task_files(headjax.tasks.SentenceSimilarity(), 8).items():
        (tmp_path / "st" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "st" / name).write_bytes(data)
    with pytest.raises(headjax.HeadjaxError, match=r"modules.json: sentence vectors of an? encoder_decoder"):
        headjax.from_huggingface(tmp_path / "st")


def test_a_decoder_makes_vectors_of_its_last_tokens(tmp_path):
    """As sentence-transformers does, which pads on the left, before and after removals; tied logits do not matter."""
    fields = CONFIGS["qwen3"] | {"vocab_size": 300}
    base = model_of(fields).replace(tokenizer=dataclasses.replace(headjax.byte_tokenizer(), special=PADDED))
    task = headjax.tasks.SentenceSimilarity(pooling=("lasttoken",), normalize=True)
    headjax.to_huggingface(headjax.with_task(base, task), tmp_path / "st")
    model = headjax.from_huggingface(tmp_path / "st")
    assert model.config.task == dataclasses.replace(task, max_seq_length=model.config.task.max_seq_length)
    assert max_difference(headjax.with_task(base, task), tmp_path / "st") < 1e-6
    headjax.prune(model, ["decoder/0/1", "decoder/1/2"]).save(tmp_path / "model")
    smaller = headjax.load(tmp_path / "model")
    headjax.to_huggingface(smaller, tmp_path / "out")
    assert max_difference(smaller, tmp_path / "out") < 1e-6
    pytest.importorskip("sentence_transformers")
    assert_same(model, computed(tmp_path / "st"), tmp_path)
    assert_same(smaller, computed(tmp_path / "out"), tmp_path)


LIBRARY = {
    "cls": {"pooling": ("cls",), "normalize": True},
    "mapped": {
        "pooling": ("mean",), "dense": DENSE, "normalize": True, "similarity": "dot", "truncate_dim": 3,
        "prompts": {"query": "人 sat", "document": "sat the "}, "default_prompt_name": "document",
    },
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
    headjax.to_huggingface(model_of(CONFIGS["bert"] | {"vocab_size": 30, "max_position_embeddings": 20}), folder)
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
    names |= {"truncate_dim": task.truncate_dim}
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
    task = headjax.tasks.SentenceSimilarity(**LIBRARY[name])
    theirs = by_library(base, task, tmp_path / "st")
    model = headjax.from_huggingface(tmp_path / "st")
    assert dataclasses.replace(model.config.task, prompts=task.prompts, max_seq_length=None) == dataclasses.replace(
        task, max_seq_length=None
    )
    assert_same(model, theirs, tmp_path)
    smaller = headjax.prune(model, ["encoder/0/1", "encoder/1/2"]).replace(files={})
    smaller.save(tmp_path / "model")
    headjax.to_huggingface(headjax.load(tmp_path / "model"), tmp_path / "out")
    assert_same(smaller, computed(tmp_path / "out"), tmp_path)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("options", [{}, {"max_length": 6}], ids=str)
def test_scores_are_those_of_a_cross_encoder(options, base, tmp_path):
    """As it wrote the directory, and as it reads what is written here, unchanged and of fewer heads."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import CrossEncoder

    headjax.to_huggingface(
        headjax.with_task(headjax.from_huggingface(base), headjax.tasks.Regression()), tmp_path / "plain"
    )
    CrossEncoder(str(tmp_path / "plain"), device="cpu", **options).save_pretrained(str(tmp_path / "ce"))
    model, pairs = headjax.from_huggingface(tmp_path / "ce"), list(zip(FIRST, SECOND, strict=True))
    smaller = headjax.prune(model, ["encoder/0/1", "encoder/1/2"])
    for each, folder in ((model, "same"), (smaller, "smaller"), (smaller.replace(files={}), "anew")):
        headjax.to_huggingface(each, tmp_path / folder)
        theirs = CrossEncoder(str(tmp_path / folder), device="cpu", trust_remote_code=True).predict(pairs)
        ours = [one["number"] for one in predict(each, Inputs(FIRST, SECOND))]
        assert np.abs(np.asarray(ours) - theirs).max() < 1e-5


def assert_same(model, theirs, folder):
    embeddings, alike, retrieved = theirs
    ours = [one["embedding"] for one in predict(model, Inputs(FIRST))]
    assert np.abs(np.asarray(ours) - embeddings).max() < 1e-5 < np.abs(embeddings[0] - embeddings[1]).max()
    for names, expected in {("sentence1", "sentence2"): alike, ("query", "text"): retrieved}.items():
        rows = ["\t".join((*pair, "1.0")) for pair in zip(FIRST, SECOND, strict=True)]
        path = write_lines(folder / f"{names[0]}.tsv", "\t".join((*names, "score")), *rows)
        kind = "similarity" if names[0] == "sentence1" else "retrieval"
        task = headjax.load_task(f"{kind}:{path}", model)
        assert np.abs(headjax.measure_task(model, task).outcomes["prediction"] - expected).max() < 2e-5, kind
