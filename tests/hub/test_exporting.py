"""Writing models that Hugging Face has no name for: every layout exact, or refused with a reason and a way out."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from headjax.attention import Collaborative, Gated, Grouped, Latent, MultiHead, RotaryInterleaved, Talking, Tucker
from headjax.attention.mixing import Concatenate
from headjax.cli import main
from headjax.core.errors import CheckpointError, HeadjaxError
from headjax.core.norms import RMSNorm
from headjax.heads.pruning import prune
from headjax.hub import from_huggingface, to_huggingface
from headjax.hub.checking import example_batch, max_difference
from headjax.hub.table import InexpressibleError
from headjax.models.pooler import Pooler
from headjax.models.tasks import NoTask, SentenceSimilarity
from tests import tiny
from tests.closeness import tolerance
from tests.hub.directories import BERT, LLAMA, T5, model_of, rewrite

RAGGED = ["encoder/0/1", "encoder/1/0", "encoder/1/2"]


def replaced(fields, *attentions, stack="encoder"):
    """The model of these fields with other formulations, layer by layer."""
    config = model_of(fields).config
    old = config.stacks()[stack]
    layers = [dataclasses.replace(layer, attention=a) for layer, a in zip(old.layers, attentions, strict=True)]
    config = config.replace_stacks({stack: dataclasses.replace(old, layers=tuple(layers))})
    return tiny.model(config)


def rounding(model):
    """Largest difference that another order of sums makes to the model's outputs."""
    output = model(example_batch(model))
    largest = max(float(np.abs(array).max()) for array in (output.hidden, output.logits) if array is not None)
    return tolerance(tiny.SUMS) * largest


def refused(model, folder, layout="auto", **options):
    """The one line of a refusal, after which nothing is there."""
    with pytest.raises(InexpressibleError) as caught:
        to_huggingface(model, folder / "out", layout, **options)
    assert not (folder / "out").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def bert():
    return model_of(BERT)


@pytest.fixture(scope="module")
def ragged(bert):
    return prune(bert, RAGGED)


def test_padded_computes_the_same(ragged, tmp_path):
    exported = to_huggingface(ragged, tmp_path / "out", "padded")
    assert exported.layout == "padded"
    assert max_difference(ragged, tmp_path / "out") < rounding(ragged)
    weight = load_file(tmp_path / "out" / "model.safetensors")["bert.encoder.layer.1.attention.output.dense.weight"]
    assert [bool(np.any(weight[:, 2 * head : 2 * head + 2])) for head in range(4)] == [False, True, False, True]


def test_pruned_heads_keep_shapes_and_numbers(ragged, tmp_path):
    to_huggingface(ragged, tmp_path / "out", "pruned_heads")
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert fields["num_attention_heads"] == 4
    assert fields["pruned_heads"] == {"0": [1], "1": [0, 2]}
    again = from_huggingface(tmp_path / "out")
    assert [a.ids for a in again.config.attentions()["encoder"]] == [(0, 2, 3), (1, 3)]
    assert max_difference(ragged, tmp_path / "out") == 0.0


def test_native_says_why_not_and_what_can(ragged, tmp_path):
    message = refused(ragged, tmp_path, "native")
    assert "3 heads do not divide a width of 8" in message
    assert message.endswith("layout padded can")


def test_auto_takes_the_first_that_can(bert, ragged, tmp_path):
    assert to_huggingface(bert, tmp_path / "one").layout == "native"
    assert to_huggingface(ragged, tmp_path / "two").layout == "padded"


def test_a_model_that_compares_sentences_is_written_without_a_task(bert, tmp_path):
    plain = bert.replace(config=dataclasses.replace(bert.config, output=NoTask()), params={**bert.params, "output": {}})
    similar = plain.replace(config=dataclasses.replace(plain.config, output=SentenceSimilarity()))
    for name, model in {"plain": plain, "similar": similar}.items():
        to_huggingface(model, tmp_path / name)
    written = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "similar")]
    assert written[0] == written[1]


def test_layers_without_heads(bert, tmp_path):
    bare = prune(bert, [f"encoder/1/{head}" for head in range(4)])
    to_huggingface(bare, tmp_path / "one")
    assert max_difference(bare, tmp_path / "one") < rounding(bare)
    assert "has no heads left" in refused(bare, tmp_path, "pruned_heads")
    none = prune(bare, [f"encoder/0/{head}" for head in range(4)])
    to_huggingface(none, tmp_path / "two")
    assert max_difference(none, tmp_path / "two") < rounding(none)


def test_albert_loses_a_head_at_every_depth(tmp_path):
    fields = BERT | {"model_type": "albert", "architectures": ["AlbertModel"], "embedding_size": 6}
    smaller = prune(model_of(fields), ["encoder/1/2"])
    to_huggingface(smaller, tmp_path / "out", "pruned_heads")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pruned_heads"] == {"0": [2]}
    assert max_difference(smaller, tmp_path / "out") == 0.0


def test_smaller_heads_are_widened_and_rescaled(tmp_path):
    """Heads of size 1 in a width of 8: four heads of size 2, whose scale differs."""
    model = replaced(BERT, *[MultiHead(num_heads=4, head_dim=1, value_dim=2)] * 2)
    assert to_huggingface(model, tmp_path / "out").layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


def test_heads_that_do_not_fit(tmp_path):
    model = replaced(BERT, *[MultiHead(num_heads=4, head_dim=4)] * 2)
    message = refused(model, tmp_path)
    assert "4 heads of size 4 fit no bert of width 8, where heads times size is the width" in message
    assert refused(model, tmp_path, "padded").endswith("no other layout can either")


def test_equal_counts_of_a_llama_are_native(tmp_path):
    model = model_of(LLAMA)
    smaller = prune(model, ["decoder/0/0", "decoder/0/2", "decoder/1/1", "decoder/1/2"])
    assert to_huggingface(smaller, tmp_path / "out").layout == "native"
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["num_attention_heads"], fields["num_key_value_heads"], fields["head_dim"]) == (2, 2, 4)
    assert max_difference(smaller, tmp_path / "out") < rounding(smaller)


def test_a_ragged_llama_keeps_its_groups(tmp_path):
    """Padding finds the groups the heads were in: two key and value heads for four queries, not four."""
    smaller = prune(model_of(LLAMA), ["decoder/0/0", "decoder/1/2", "decoder/1/3"])
    message = refused(smaller, tmp_path, "native")
    assert "2 does not divide the num_heads of 3; layout padded can" in message
    assert to_huggingface(smaller, tmp_path / "out").layout == "padded"
    fields = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (fields["num_attention_heads"], fields["num_key_value_heads"]) == (4, 2)
    assert max_difference(smaller, tmp_path / "out") < rounding(smaller)
    assert "transformers 4 removed no heads of llama" in refused(
        smaller, tmp_path / "x", "pruned_heads", family="llama"
    )


def test_normalised_heads_of_another_scale(tmp_path):
    """The scale goes into the norm's weight, since the norm would undo it before."""
    fields = LLAMA | {"model_type": "qwen3"}
    like = model_of(fields).config.decoder.layers[0].attention
    model = replaced(fields, dataclasses.replace(like, scale=0.3), like, stack="decoder")
    to_huggingface(model, tmp_path / "out", "padded", family="qwen3")
    assert max_difference(model, tmp_path / "out") < rounding(model)


@pytest.mark.parametrize("columns", [(0, 2), (0, 1)])
def test_t5_shares_a_position_bias(tmp_path, columns):
    """Layers that kept the same heads share smaller tables; layers that kept others do not."""
    model = model_of(T5)
    first = [f"encoder/0/{head}" for head in (0, 2)]
    rest = [f"{layer}/{head}" for layer in ("decoder/0", "decoder/1", "cross/0", "cross/1") for head in (0, 2)]
    smaller = prune(model, [*first, *rest, *(f"encoder/1/{head}" for head in columns)])
    expected = "native" if columns == (0, 2) else "padded"
    assert to_huggingface(smaller, tmp_path / "out").layout == expected
    assert max_difference(smaller, tmp_path / "out") < rounding(smaller)
    if expected == "padded":
        assert "kept different heads and share one position bias" in refused(smaller, tmp_path / "x", "native")


SIZES = {"value_dim": 2, "head_dim": 2}
FORMULATIONS = {
    "grouped": Grouped(num_heads=4, kv_heads=2, head_dim=2, projection_bias=True),
    "unequal groups": Grouped(num_heads=3, kv_heads=2, head_dim=2, kv_index=(0, 1, 1), head_ids=(0, 2, 3)),
    "latent": Latent(num_heads=4, rank=3, head_dim=2),
    "latent queries": Latent(num_heads=4, rank=3, head_dim=2, query_rank=5, projection_bias=True, output_bias=True),
    "tucker": Tucker(num_heads=4, query_rank=3, key_rank=2, projection_bias=True, **SIZES),
    "tucker content": Tucker(num_heads=4, query_rank=3, key_rank=1, content_bias=True, **SIZES),
    "collaborative": Collaborative(num_heads=4, shared_dim=2, projection_bias=True, **SIZES),
    "collaborative content": Collaborative(num_heads=4, shared_dim=1, content_bias=True, **SIZES),
}


@pytest.mark.parametrize("name", FORMULATIONS)
def test_formulations_that_are_multi_head_attention(name, tmp_path):
    model = replaced(BERT, FORMULATIONS[name], MultiHead(num_heads=2, head_dim=2))
    assert to_huggingface(model, tmp_path / "out").layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


@pytest.mark.parametrize("biased", [False, True])
def test_heads_of_any_size_fit_a_t5(biased, tmp_path):
    """Its heads have a size of their own, but no biases."""
    attention = Collaborative(
        num_heads=4, shared_dim=6, content_bias=biased, value_bias=False, output_bias=False, **SIZES
    )
    model = replaced(T5, attention, attention)
    if biased:
        assert "there is no place for its query bias" in refused(model, tmp_path, "padded", family="t5")
        return
    assert to_huggingface(model, tmp_path / "out", family="t5").layout == "padded"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["d_kv"] == 6
    assert max_difference(model, tmp_path / "out") < rounding(model)


def test_shared_dimensions_that_no_head_reads_are_dropped(tmp_path):
    """A full-rank collaborative layer, each head reading its own block of the shared dimensions, is multi-head."""
    attention = Collaborative(num_heads=4, shared_dim=8, mixing_init=Concatenate(), **SIZES)
    model = replaced(BERT, attention, attention)
    blocks = np.kron(np.eye(4, dtype=np.float32), np.ones((1, 2), np.float32))
    run = model.params["encoder"]["layers_0_1"]
    run["attention"]["mixing"] = np.stack([blocks, 2 * blocks])
    assert to_huggingface(model, tmp_path / "out").layout == "padded"
    assert max_difference(model, tmp_path / "out") < rounding(model)


@pytest.mark.parametrize(
    ("attention", "said"),
    [
        (Talking(num_heads=4, logit_heads=4, softmax_heads=4, head_dim=2), "talking attention is no multi-head"),
        (Gated(inner=MultiHead(num_heads=4, head_dim=2)), "gated_heads attention is no multi-head attention"),
        (Latent(num_heads=4, rank=3, head_dim=2, latent_norm=RMSNorm()), "latent attention with a latent_norm"),
        (MultiHead(num_heads=4, head_dim=2, rotary=RotaryInterleaved()), "rotary positions are not those"),
        (Collaborative(num_heads=4, shared_dim=5, **SIZES), "4 heads of size 5 fit no bert of width 8"),
    ],
)
def test_formulations_that_are_not(attention, said, tmp_path):
    message = refused(replaced(BERT, attention, MultiHead(num_heads=4, head_dim=2)), tmp_path)
    assert said in message


def test_a_bias_without_a_place(tmp_path):
    like = model_of(T5).config.encoder.layers[0].attention
    model = replaced(T5, dataclasses.replace(like, projection_bias=True), like)
    assert "there is no place for its query bias" in refused(model, tmp_path, "padded", family="t5")


def test_what_a_family_cannot_say(bert, tmp_path):
    model = tiny.model(dataclasses.replace(bert.config, pooler=Pooler(activation="relu")))
    message = refused(model, tmp_path, family="bert")
    assert "a bert config.json cannot say that pooler.activation is 'relu' (it would be 'tanh')" in message


def test_fields_that_mean_nothing_here_survive(bert, tmp_path):
    """Names of labels and tokens come back, unless what is written contradicts them."""
    to_huggingface(bert, tmp_path / "one")
    names = {"0": "no", "1": "maybe", "2": "yes"}
    rewrite(tmp_path / "one", id2label=names, sep_token_id=7, dtype="float64", pruned_heads={})
    to_huggingface(from_huggingface(tmp_path / "one"), tmp_path / "two")
    fields = json.loads((tmp_path / "two" / "config.json").read_text())
    assert (fields["id2label"], fields["sep_token_id"], fields["dtype"]) == (names, 7, "float32")
    assert "pruned_heads" not in fields


def test_bfloat16_is_written_as_such(bert, tmp_path):
    to_huggingface(bert, tmp_path / "one")
    half = from_huggingface(tmp_path / "one", dtype="bfloat16")
    to_huggingface(half, tmp_path / "two")
    assert json.loads((tmp_path / "two" / "config.json").read_text())["dtype"] == "bfloat16"
    assert from_huggingface(tmp_path / "two").params["embeddings"]["token"].dtype == "bfloat16"
    smaller = prune(half, RAGGED)
    to_huggingface(smaller, tmp_path / "three", "padded")
    assert from_huggingface(tmp_path / "three").params["embeddings"]["token"].dtype == "bfloat16"


def test_bad_requests(bert, ragged, tmp_path):
    with pytest.raises(HeadjaxError, match="unknown layout 'nativ'; did you mean 'native'"):
        to_huggingface(bert, tmp_path / "out", "nativ")
    with pytest.raises(HeadjaxError, match="unknown family 'bret'; did you mean 'bert'"):
        to_huggingface(bert, tmp_path / "out", family="bret")
    assert "family: gpt2 is no encoder" in refused(bert, tmp_path, family="gpt2")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(CheckpointError, match="mine: exists and holds something else"):
        to_huggingface(bert, tmp_path / "mine")
    ragged.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "model")]) == 2
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--layout", "native"]) == 2
    assert not (tmp_path / "out").exists()


def test_an_export_replaces_an_earlier_one(bert, ragged, tmp_path):
    to_huggingface(bert, tmp_path / "out")
    to_huggingface(ragged, tmp_path / "out", "pruned_heads")
    assert max_difference(ragged, tmp_path / "out") == 0.0
