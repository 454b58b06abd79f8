"""What a `config.json` means: one line for each way to say it and each way to be refused, in every family."""

import functools

import pytest

import headjax
from tests.hub.directories import BERT, CONFIGS, config_of, family

SLIDING, FULL = "sliding_attention", "full_attention"
TYPES = [SLIDING, FULL]
WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SCALED = headjax.nn.RotaryHalves(base=5e5, scaling=headjax.nn.LinearScaling(8.0))
ROBERTA = {"architectures": ["RobertaModel"], "pad_token_id": 2}
NAMED = {"id2label": {"0": "no", "1": "maybe", "2": "yes"}}
SEVERAL = {"problem_type": "multi_label_classification"}
LLAMA_LABELS = {"architectures": ["LlamaForSequenceClassification"]}
LABELLED = functools.partial(headjax.tasks.Classification, dropout=0.1)
POOLER = ("pooler.dense.weight",)


def read(kind, tensors=(), **fields):
    """The config of a tiny model of the family with other fields; None takes one away."""
    return config_of(CONFIGS[kind] | fields, tensors)


def layers(config):
    return config.stacks()["encoder" if "encoder" in config.stacks() else "decoder"].layers


def windows(config):
    return [layer.window for layer in layers(config)]


def rotary(config):
    return [layer.attention.rotary for layer in layers(config)]


def scaling(config):
    return rotary(config)[0].scaling


def reach(config):
    return config.max_length


def heads(config):
    return layers(config)[0].attention.num_heads


def rows(config):
    return config.max_length, config.position_offset


def output(config):
    return config.task


def turns(config):
    return [each is not None for each in rotary(config)]


def scales(config):
    return [layer.attention.logit_scale for layer in layers(config)]


READ = [
    ("mistral", {"sliding_window": None}, windows, [None, None]),
    ("qwen3", WINDOWS | {"use_sliding_window": False, "attention_bias": True, "head_dim": 6}, windows, [None, None]),
    ("qwen3", WINDOWS | {"layer_types": TYPES}, windows, [3, None]),
    ("qwen3", {"head_dim": None}, lambda config: layers(config)[0].attention.head_dim, 128),
    ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 1}, turns, [False, False]),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 4}, windows, [None, 4]),
    (
        "gemma3_text",
        {"rope_scaling": LINEAR, "rope_parameters": {FULL: LINEAR | {"factor": 2.0, "rope_theta": 5e5}}},
        rotary,
        [headjax.nn.RotaryHalves(base=1e4), SCALED],
    ),
    ("gpt2", {"n_head": None, "num_attention_heads": 2}, heads, 2),
    ("t5", {"num_heads": None, "num_attention_heads": 2}, heads, 2),
    ("llama", {"max_position_embeddings": None}, reach, None),
    ("llama", {"max_position_embeddings": 16, "rope_scaling": YARN}, reach, 64),
    ("llama", {"max_position_embeddings": 16, "rope_scaling": LINEAR}, reach, 16),
    ("llama", {"rope_scaling": LINEAR | {"rope_type": None, "type": "linear"}}, scaling, headjax.nn.LinearScaling(8.0)),
    ("llama", {"rope_theta": 5e5, "rope_scaling": LINEAR}, rotary, [SCALED] * 2),
    ("llama", {"rope_scaling": YARN}, scaling, headjax.nn.YarnScaling(4.0, 16)),
    (
        "llama",
        {"rope_scaling": YARN | {"attention_factor": 1.5}},
        scaling,
        headjax.nn.YarnScaling(4.0, 16, attention_factor=1.5),
    ),
    ("llama", {"rope_scaling": LLAMA3}, scaling, headjax.nn.Llama3Scaling(8.0, 1.0, 4.0, 32)),
    ("gpt_neox", {"use_parallel_residual": False}, lambda config: config.residual, "pre_norm"),
    (
        "gpt_neox",
        {"num_attention_heads": 1, "rotary_pct": 0.25, "rotary_emb_base": 5e5, "rope_scaling": LINEAR},
        rotary,
        [headjax.nn.RotaryHalves(base=5e5, dim=2, scaling=headjax.nn.LinearScaling(8.0))] * 2,
    ),
    ("gemma2", {"rope_theta": 5e5, "rope_scaling": LINEAR}, rotary, [SCALED] * 2),
    ("gemma2", {}, lambda config: (config.softcap, config.attention_softcap), (30.0, 3.0)),
    (
        "gemma3_text",
        {"rope_parameters": {FULL: LINEAR | {"rope_theta": 5e5}, SLIDING: {"rope_type": "default", "rope_theta": 2e4}}},
        rotary,
        [headjax.nn.RotaryHalves(base=2e4), SCALED],
    ),
    (
        "gemma3_text",
        {"rope_scaling": YARN},
        scales,
        [16**-0.5, 16**-0.5 * headjax.nn.YarnScaling(4.0, 16).logit_factor],
    ),
    ("gemma3_text", {"layer_types": [FULL] * 2}, windows, [None, None]),
    ("modernbert", {"local_attention": 1, "layer_types": [SLIDING] * 3}, windows, [1] * 3),
    ("modernbert", {"global_rope_theta": 1e5}, lambda config: [each.base for each in rotary(config)], [1e5, 1e4, 1e5]),
    ("roberta", ROBERTA, rows, (7, 3)),
    ("bart", {"decoder_start_token_id": 3}, lambda config: config.start_token, 3),
    ("marian", {"decoder_start_token_id": 3}, lambda config: (config.start_token, config.padding_token), (3, 1)),
    ("vit", {"image_size": [4, 4]}, lambda config: config.image_size, 4),
    ("dinov2", {"use_swiglu_ffn": True, "mlp_ratio": 4}, lambda config: config.hidden, (24, 24)),
    (
        "bert",
        {"num_labels": 1, "architectures": ["BertForSequenceClassification"]},
        output,
        headjax.tasks.Regression(outputs=1, dropout=0.1),
    ),
    (
        "bert",
        NAMED | {"architectures": ["BertForSequenceClassification"]},
        output,
        headjax.tasks.Classification(classes=3, dropout=0.1, names=("no", "maybe", "yes")),
    ),
    ("xlm-roberta", {}, output, LABELLED(classes=3)),
    ("xlm-roberta", {"num_labels": 1, "problem_type": "single_label_classification"}, output, LABELLED(classes=1)),
    ("xlm-roberta", {"problem_type": "regression"}, output, headjax.tasks.Regression(outputs=3, dropout=0.1)),
    (
        "xlm-roberta",
        NAMED | SEVERAL,
        output,
        headjax.tasks.MultiLabel(classes=3, names=("no", "maybe", "yes"), dropout=0.1),
    ),
    ("vit", {"num_labels": 4} | SEVERAL, output, headjax.tasks.MultiLabel(classes=4, dropout=0.0)),
    ("llama", LLAMA_LABELS | SEVERAL, output, headjax.tasks.MultiLabel(classes=2, dropout=0.0)),
    ("xlm-roberta", {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, output, LABELLED(classes=2)),
]


def named(value):
    """Return the name of a function, whose text would hold its address."""
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("kind", "fields", "part", "expected"), READ, ids=lambda value: named(value)[:40])
def test_a_config_is_read_and_written(kind, fields, part, expected):
    config = read(kind, **fields)
    found = part(config)
    assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)
    written = family(kind).write(config)
    assert config_of(CONFIGS[kind] | fields | written) == config


@pytest.mark.parametrize(
    ("kind", "fields", "written"),
    [
        ("llama", {"rope_scaling": YARN}, {"rope_parameters": YARN | {"rope_theta": 10000.0, "beta_fast": 32.0}}),
        ("gemma3_text", {}, {"layer_types": TYPES, "hidden_activation": "gelu_pytorch_tanh"}),
        ("qwen3", WINDOWS, {"layer_types": TYPES[::-1], "use_sliding_window": True, "sliding_window": 3}),
        ("qwen3", {}, {"layer_types": [FULL] * 2, "use_sliding_window": False, "sliding_window": None}),
        ("smollm3", {"rope_theta": 5e5}, {"rope_theta": 5e5, "no_rope_layers": [1, 0]}),
        ("modernbert", {}, {"local_attention": 4, "local_rope_theta": 1e4}),
        ("dinov2", {"mlp_ratio": 4, "use_swiglu_ffn": True}, {"mlp_ratio": 4, "use_mask_token": False}),
        ("roberta", ROBERTA, {"max_position_embeddings": 10, "pad_token_id": 2}),
        ("camembert", NAMED, NAMED | {"label2id": {"no": 0, "maybe": 1, "yes": 2}}),
    ],
)
def test_fields_that_are_written(kind, fields, written):
    found = family(kind).write(read(kind, **fields))
    for name, value in written.items():
        own = found[name]
        assert (value.items() <= own.items()) if isinstance(value, dict) else (own == value), name


REFUSED = [
    ("bert", {"architectures": "BertModel"}, "architectures"),
    *(("bert", {"hidden_size": value}, "hidden_size") for value in (0, True)),
    ("bert", {"num_attention_heads": 3}, "num_attention_heads"),
    ("bert", {"hidden_act": "mish"}, "hidden_act"),
    ("bert", {"layer_norm_eps": float("nan")}, "layer_norm_eps"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("bert", {"is_decoder": True}, "is_decoder"),
    ("roberta", ROBERTA | {"max_position_embeddings": 2}, "max_position_embeddings"),
    ("xlm-roberta", {"problem_type": "several"}, "problem_type"),
    ("xlm-roberta", {"id2label": {"1": "no", "2": "yes"}}, "id2label"),
    ("gpt2", {"is_causal": False}, "is_causal"),
    ("llama", {"rope_scaling": YARN | {"mscale": 0.5}}, "rope_scaling: mscale"),
    ("modernbert", {"rope_scaling": LINEAR}, "rope_scaling"),
    ("nomic_bert", {"prenorm": True}, "prenorm"),
    ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling"),
    ("vit", {"image_size": [4, 6]}, "image_size"),
    ("mistral", {"sliding_window": 0}, "sliding_window"),
    ("qwen3", WINDOWS | {"layer_types": [FULL, "chunked_attention"]}, "layer_types"),
    ("qwen3", WINDOWS | {"sliding_window": None, "layer_types": TYPES[::-1]}, "sliding_window: .* layer 1"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
    ("phi3", {"partial_rotary_factor": 0.3}, "rope_scaling: partial_rotary_factor"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3_text", {"sliding_window": None, "layer_types": TYPES}, "sliding_window"),
    ("gemma3_text", {"rope_parameters": {"rope_type": "default"}}, "rope_parameters"),
    ("llama", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "rope_scaling: rope_type"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters: partial_rotary_factor"),
    ("llama", {"rope_scaling": YARN | {"beta_fast": 1.0}}, "rope_scaling: beta_slow"),
]


@pytest.mark.parametrize(("kind", "fields", "named"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_config_is_refused_by_its_field(kind, fields, named):
    with pytest.raises(headjax.ConfigError, match=rf"^config\.json: {named}\b[^\n]*$"):
        read(kind, **fields)


@pytest.mark.parametrize(
    ("kind", "missing"), [("llama", 64), ("mistral", 8), ("qwen2", 32), ("qwen3", 32), ("smollm3", 4)]
)
def test_key_value_heads_without_a_field_are_those_of_the_class_and_with_null_as_many_as_heads(kind, missing):
    fields = {name: value for name, value in CONFIGS[kind].items() if name != "num_key_value_heads"}
    fields |= {"hidden_size": 256, "num_attention_heads": 64}
    counts = [config_of(fields | more).attention[0].kv_heads for more in ({}, {"num_key_value_heads": None})]
    assert counts == [missing, 64]


def test_a_length_before_scaling_may_stand_beside_the_rotary_parameters():
    """As in Phi-3, and before the one among them; an object for each type of layer has its own."""
    beside, inside = {"original_max_position_embeddings": 32}, {"original_max_position_embeddings": 16}
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    for kind in ("llama", "phi3"):
        for own in ({}, inside):
            assert scaling(read(kind, rope_parameters=yarn | own, **beside)).original_length == 32
            assert scaling(read(kind, rope_parameters=yarn | own, rope_scaling=None)).original_length == (
                16 if own else 2048
            )
    nested = dict.fromkeys((SLIDING, FULL), yarn | inside)
    assert scaling(read("gemma3_text", rope_parameters=nested, **beside)).original_length == 16


def test_a_pooler_shows_in_the_tensors():
    assert read("vit", architectures=["ViTModel"]).pooler is None
    assert read("vit", POOLER, architectures=["ViTModel"], pooler_act="relu").pooler == "relu"
    with pytest.raises(headjax.ConfigError, match=r"^config\.json: pooler_output_size: "):
        read("vit", POOLER, architectures=["ViTModel"], pooler_output_size=4)


def test_pretraining_under_the_name_of_one_task():
    """bert-base-uncased calls itself BertForMaskedLM and holds the output of both tasks."""
    both = read("bert", architectures=["BertForPreTraining"])
    assert read("bert", ("cls.seq_relationship.weight",), architectures=["BertForMaskedLM"]) == both
    assert config_of(BERT) != both
