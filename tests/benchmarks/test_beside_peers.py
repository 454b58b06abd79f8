"""Benchmarks beside peers: the models that are measured, their costs, steps, tables, and the machine."""

import importlib.metadata
import importlib.util
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import headjax
from benchmarks import commands, encode, gpu, heads, hub, repair, train_step
from benchmarks.generate import Cost, Shape, llama, run, variants
from benchmarks.result import in_new_process
from tests.hub.directories import BERT, model_of

TINY = Shape(
    width=16, layers=1, heads=4, kv_heads=2, head_dim=4, hidden=24, vocabulary=50, prompt=6, new=5, repeats=2,
    contexts=(8,),
)  # fmt: skip


def test_the_measured_model_has_30_to_60_million_parameters():
    config = llama(Shape(layers=1, vocabulary=8)).config
    layer = headjax.summarize(config, 8).parameters - 8 * 512 - 512
    assert 30e6 < 32_000 * 512 + 8 * layer + 512 < 60e6


def test_variants_hold_half_of_the_cache():
    models = variants(llama(TINY), TINY)
    costs = {name: Cost.of(model.config, TINY, headjax.Compute()) for name, model in models.items()}
    whole = costs.pop("whole")
    assert whole.cache == 4 * (2 + 2) * 4
    # A latent keeps the position.
    assert [cost.cache / whole.cache for cost in costs.values()] == [0.5, 0.5, 9 / 16]
    one, two = (Cost.of(models["whole"].config, TINY, headjax.Compute(), batch).step.bytes for batch in (1, 2))
    assert two - one == 11 * whole.cache


@pytest.mark.parity
@pytest.mark.whole
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra")
def test_a_tiny_run_gives_the_peers_tokens():
    found = run(shape=TINY)
    assert found.ours["whole"]["1"]["same_tokens_as_peer"] == 1.0
    assert found.ours["whole"]["8"]["decode_speed_up"] == 1.0
    assert found.ours["pruned by half"]["1"]["decode_speed_up_predicted"] > 1.0
    after = found.ours["latent, half the cache"]["contexts"]["8"]
    assert after["cache_bytes_per_token"] * 16 == 9 * found.ours["whole"]["contexts"]["8"]["cache_bytes_per_token"]
    assert after["decode_tokens_per_second"] > 0
    assert len(found.tables) == 3
    assert found.ratio > 0


@pytest.mark.whole
def test_decoders_of_two_directories_are_timed_after_a_context(tmp_path):
    models = variants(llama(TINY), TINY)
    names = "whole", "grouped, half the cache"
    for name in names:
        models[name].save(tmp_path / name)
    found = run(shape=TINY, models=[tmp_path / name for name in names])
    whole, half = (found.ours["8"][name] for name in names)
    assert half["cache_bytes_per_token"] * 2 == whole["cache_bytes_per_token"]
    assert found.ratio == half["decode"]["median"] / whole["decode"]["median"]


@pytest.mark.parity
@pytest.mark.whole
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra")
def test_encoders_of_two_directories_are_timed_and_refitted_as_k_prune_does(tmp_path, monkeypatch):
    fields = {"vocab_size": 257, "max_position_embeddings": 64, "architectures": ["BertModel"]}
    model = model_of(BERT | fields).replace(tokenizer=headjax.byte_tokenizer())
    for name, one in {"whole": model, "small": headjax.prune(model, ["encoder/0/1", "encoder/1/3"])}.items():
        headjax.to_huggingface(one, tmp_path / name)
    sizes = {"EXAMPLES": 64, "JUDGED": 32, "CHARACTERS": 12, "BATCH": 16, "REPEATS": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(repair, name, size)
    found = repair.run(models=[tmp_path / "whole"])
    before = found.tables[0].rows[-1][-1]
    assert found.ours["apart"] < before
    assert found.peer["apart"] < before
    if importlib.util.find_spec("onnxruntime") is not None:
        monkeypatch.setattr(encode, "SHAPES", ((2, 5),))
        monkeypatch.setattr(encode, "REPEATS", 2)
        timed = encode.run(models=[tmp_path / "whole", tmp_path / "small"])
        assert len(timed.ours["2x5"]) == 8


@pytest.mark.whole
def test_commands_are_timed_without_and_with_their_compiled_programs(tmp_path, monkeypatch):
    model = model_of(BERT | {"vocab_size": 257, "max_position_embeddings": 64, "architectures": ["BertModel"]})
    headjax.to_huggingface(model.replace(tokenizer=headjax.byte_tokenizer()), tmp_path / "model")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\n" + "".join(f"one {n}\ttwo {n}\t{n % 6}\n" for n in range(8)))
    monkeypatch.setattr(commands, "COMMANDS", {"score": commands.COMMANDS["score"]})
    found = commands.run(models=[tmp_path / "model"], task=str(pairs), calibration=str(pairs), calibrate=8)
    first, again = found.ours["score"]
    assert first["compiling"] > again["compiling"] > 0.0
    assert found.peer["tokens"] >= 8 * 2 * len("one 1")
    monkeypatch.setattr(commands, "COMMANDS", {"prune": ("prune", "MODEL", str(tmp_path), "--remove", "1")})
    with pytest.raises(headjax.HeadjaxError, match=r"^commands: prune .*: .*exists"):
        commands.run(models=[tmp_path / "model"], task=str(pairs), calibration=str(pairs))


@pytest.mark.parametrize("bench", [heads, train_step])
def test_without_pytorch_it_says_so_before_anything_is_measured(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(bench, "bert", lambda *arguments: pytest.fail("measured"))
    with pytest.raises(headjax.HeadjaxError, match=rf"^bench {bench.__name__.rpartition('.')[2]}: .*torch"):
        bench.run()


def test_the_measured_model_is_bert_base():
    config = train_step.bert()
    layers = config.attentions()["encoder"]
    assert [(layer.num_heads, layer.head_dim) for layer in layers] == [(12, 64)] * 12
    # BERT-base with its masked-language-model head, as transformers' BertForMaskedLM counts it.
    assert headjax.summarize(config, 8).parameters == 109_514_298


FIELDS = hub.LARGE | {
    "vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The benchmark's folder with a small directory in several files."""
    monkeypatch.setattr(hub, "SHARD", 3000)
    monkeypatch.setattr(hub, "BLOCK", 256)
    hub.write_random(tmp_path / "theirs", FIELDS)
    return tmp_path


def test_the_directory_is_a_model_in_several_files(folder):
    size = hub.write_random(folder / "again", FIELDS)
    model = headjax.from_huggingface(folder / "theirs")
    assert size == 2 * model.num_parameters == sum(array.nbytes for array in jax.tree.leaves(model.params))
    assert {array.dtype for array in jax.tree.leaves(model.params)} == {jnp.dtype(jnp.bfloat16)}
    assert model.tokenizer is not None
    assert len(list((folder / "theirs").glob("model-*.safetensors"))) > 2
    table = np.asarray(model.params["embeddings"]["token"], np.float32)
    assert np.std(table) == pytest.approx(0.02, rel=0.05)
    assert np.mean(model.params["decoder"]["final_norm"]["scale"], dtype=np.float32) == pytest.approx(1.0, abs=0.05)
    for file in (folder / "theirs").iterdir():
        assert file.read_bytes() == (folder / "again" / file.name).read_bytes()


def test_copy_import_and_export_keep_every_tensor(folder, capsys):
    for step in ("copy", "import", "export"):
        hub.report(step, str(folder))
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found["seconds"] > 0
        assert found["peak_bytes"] >= found["before_bytes"] > 0
    for file in (folder / "theirs").iterdir():
        assert file.read_bytes() == (folder / "copied" / file.name).read_bytes()
    exported = load_file(folder / "exported" / "model.safetensors")
    shards = [load_file(file) for file in (folder / "theirs").glob("*.safetensors")]
    theirs = {name: array for shard in shards for name, array in shard.items()}
    assert exported.keys() == theirs.keys()
    for name, array in theirs.items():
        assert exported[name].tobytes() == array.tobytes()
    with pytest.raises(headjax.HeadjaxError, match=r"^export: "):
        hub.report("export", str(folder))


@pytest.mark.whole
def test_pruning_chooses_among_all_heads(folder):
    for step in ("import", "prune"):
        hub.report(step, str(folder))
    assert len(headjax.load(folder / "pruned").history[-1]["removed"]) == 2


def test_a_failed_process_is_the_last_line_of_its_errors():
    with pytest.raises(headjax.HeadjaxError, match=r"^shutil: nothing: FileNotFoundError: .*'nothing'$"):
        in_new_process(shutil.copyfile, "nothing", "nowhere")  # of a module that imports no JAX


def test_flops_of_a_train_step_are_six_a_weight_and_token_and_those_of_attention():
    size = gpu.Size("", width=64, layers=2, batch=3, length=5, vocabulary=100)
    weights = 2 * 12 * 64**2 + 64 * 64 + 64 * 100  # four attention maps and two of the feed-forward, the head's two
    assert size.flops == 3 * 5 * (6 * weights + 12 * 2 * 64 * 5)


@pytest.mark.parity
@pytest.mark.whole
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra")
def test_train_steps_in_bfloat16_are_timed_on_what_there_is():
    size = gpu.Size("tiny", width=64, layers=1, batch=2, length=16, vocabulary=50)
    found = gpu.run(sizes=(size,))
    assert [row[1] for row in found.tables[0].rows] == [
        "headjax, einsum, scanned",
        "headjax, einsum, unrolled",
        "PyTorch",
    ]
    assert found.ratio == found.ours["tiny"] / found.peer["tiny"] > 0
    with pytest.raises(headjax.HeadjaxError, match="no accelerator"):
        gpu.run()
