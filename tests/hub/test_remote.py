"""The layout `remote`: models of any sizes in `transformers`, by the code beside their weights."""

import json

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.hub.directories import example_batch, max_difference, rewrite
from tests.hub.remote_models import (
    ATTENTION,
    DECODERS,
    NORM,
    PAIR,
    assert_same,
    computed_there,
    decoder,
    encoder,
    parity,
    read_there,
    vision,
)


def texts(task, labels, **fields):
    return lambda: (encoder(ATTENTION["ragged"], task, **fields), np.asarray(labels))


LABELS = np.zeros((2, tiny.MAX_LENGTH), np.int64)
SEVERAL = np.asarray([[0, 1, 1], [1, 0, 0]], np.float32)
TASKS = {
    "SequenceClassification": texts(headjax.tasks.Classification(classes=3, dropout=0.0), [0, 2]),
    "SequenceClassification of several labels": texts(headjax.tasks.MultiLabel(classes=3, dropout=0.0), SEVERAL),
    "TokenClassification": texts(headjax.tasks.TokenClassification(classes=4, dropout=0.0), LABELS),
    "TokenClassification of pooled tokens": texts(
        headjax.tasks.TokenClassification(classes=4, dropout=0.0),
        LABELS,
        pooler="gelu",
        pooler_reads="tokens",
        pooler_norm=NORM,
    ),
    "SequenceClassification of ends by their token": texts(
        headjax.tasks.Classification(classes=3, dropout=0.0), [0, 2], pooler=None, end_token=5
    ),
    "MaskedLM": texts(headjax.tasks.MaskedLanguageModel(), LABELS),
    "MaskedLM and next sentences": texts(headjax.tasks.Pretraining(), LABELS),
    "QuestionAnswering": lambda: (
        encoder(ATTENTION["latent"], headjax.tasks.Span(dropout=0.0)),
        {"start_positions": np.asarray([1, 2]), "end_positions": np.asarray([1, 3])},
    ),
    "ImageClassification": lambda: (vision(ATTENTION["a layer without heads"]), np.asarray([0, 2])),
    "ImageClassification of DeiT": lambda: (
        vision(ATTENTION["ragged"], headjax.tasks.DistilledClassification(classes=3), distillation_token=True),
        np.asarray([1, 1]),
    ),
    "ImageClassification of DINOv2": lambda: (
        vision(ATTENTION["ragged"], residual="scaled_pre_norm", patch_mean=True, gated=True, hidden=(12, 5)),
        np.asarray([0, 2]),
    ),
    "ImageClassification of CLIP": lambda: (
        vision(ATTENTION["ragged"], residual="pre_norm", embedding_norm=True, patch_bias=False, pooled_norm=True),
        np.asarray([0, 2]),
    ),
    "CausalLM": lambda: (decoder(ATTENTION["grouped"]), LABELS),
    "SequenceClassification by the last token": lambda: (
        decoder(ATTENTION["grouped"], task=headjax.tasks.Classification(classes=3, dropout=0.0), padding_token=4),
        np.asarray([0, 2]),
    ),
}


def assert_hidden(model, folder):
    """Hidden states of every token that is there, by the code and by headjax's own reading."""
    assert headjax.to_huggingface(model, folder, "remote").layout == "remote"
    assert max_difference(model, folder) < 1e-6
    batch = example_batch(model)
    assert_same(model(batch).hidden, computed_there(folder, batch, "AutoModel").last_hidden_state, batch)


@pytest.mark.parametrize("name", ATTENTION)
def test_formulations_come_back(name, tmp_path):
    model = encoder(ATTENTION[name])
    found = headjax.to_huggingface(model, tmp_path / "out")
    assert (found.family, found.layout) == ("headjax_encoder", "remote")
    again = headjax.from_huggingface(tmp_path / "out")
    assert [one.ids for one in again.config.attention] == [one.ids for one in model.config.attention]
    assert max_difference(model, tmp_path / "out") < 1e-6


class TestInTransformers:
    pytestmark = parity

    @pytest.mark.parametrize("make", [encoder, decoder])
    @pytest.mark.parametrize("name", ATTENTION)
    def test_every_formulation(self, name, make, tmp_path):
        assert_hidden(make(ATTENTION[name]), tmp_path / "out")

    @pytest.mark.parametrize("name", DECODERS)
    def test_families_of_decoders(self, name, tmp_path):
        model = decoder(ATTENTION["ragged"], **DECODERS[name])
        headjax.to_huggingface(model, tmp_path / "out", "remote")
        batch = {"input_ids": example_batch(model)["input_ids"]}
        assert_same(model(batch).logits, computed_there(tmp_path / "out", batch, "AutoModelForCausalLM").logits, batch)

    @pytest.mark.parametrize("name", TASKS)
    def test_tasks(self, name, tmp_path):
        """Logits as here; loss, gradient and a step of training that lowers the loss."""
        import torch

        model, labels = TASKS[name]()
        found = headjax.to_huggingface(model, tmp_path / "out", "remote")
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        assert (found.layout, config["architectures"][0]) == ("remote", f"HeadjaxFor{name.split()[0]}")
        assert max_difference(model, tmp_path / "out") < 1e-6
        batch, output = example_batch(model), model(example_batch(model))
        batch |= {"labels": labels} if isinstance(labels, np.ndarray) else labels
        theirs = read_there(tmp_path / "out", f"AutoModelFor{name.split()[0]}")
        tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in batch.items()}
        first, logits = theirs(**tensors), np.asarray(output.logits)
        starts = "start_logits" in first
        assert_same(logits[..., 0] if starts else logits, first["start_logits" if starts else "logits"], batch)
        first.loss.backward()
        torch.optim.SGD(theirs.parameters(), lr=1e-3).step()
        assert theirs(**tensors).loss < first.loss

    def test_positions_norms_and_embeddings_of_encoders(self, tmp_path):
        kinds = {
            "RoBERTa": {"positions": "learned_present", "position_offset": 2, "segments": 1},
            "DistilBERT": {"segments": 0, "pooler": None},
            "ALBERT": {"embedding_size": 6, "shared_layers": True, "hidden": (9, 9), "window": (2, 2)},
            "ModernBERT": {
                "positions": "none",
                "segments": 0,
                "gated": True,
                "feed_forward_bias": False,
                "residual": "pre_norm",
                "norm": headjax.nn.LayerNorm(bias=False),
                "attention_norm": (False, True),
                "window": (None, 2),
                "pooler_reads": "mean",
                "pooler_bias": False,
                "pooler_norm": headjax.nn.LayerNorm(),
            },
            "CLIP": {"causal": True, "residual": "pre_norm", "pooler": None, "activation": "quick_gelu"},
            "Admin": {"positions": "sinusoidal_endpoint", "residual": "scaled_post_norm", "embedding_norm": False},
        }
        for name, fields in kinds.items():
            attention = (PAIR, PAIR) if name == "ALBERT" else ATTENTION["ragged"]
            assert_hidden(encoder(attention, **fields), tmp_path / name)

    @pytest.mark.parametrize("name", [name for name in ATTENTION if name not in ("turning", "scaled")])
    def test_relative_positions_of_the_heads_that_are_left(self, name, tmp_path):
        """Near and far, with padding: 40 tokens, of which distances from 3 share buckets."""
        bias, attention = headjax.nn.RelativeBuckets(num_heads=4, buckets=8, max_distance=20), ATTENTION[name]
        fields = {"positions": "learned_present", "position_offset": 2, "segments": 0, "max_length": 40}
        model = encoder(attention, position_bias=bias, **fields)
        headjax.to_huggingface(model, tmp_path / "out", "remote")
        batch = example_batch(model, 40)
        assert_same(model(batch).hidden, computed_there(tmp_path / "out", batch, "AutoModel").last_hidden_state, batch)

    def test_a_pipeline_and_what_is_saved_again(self, tmp_path):
        """The names of classes, the tokenizer; a fine-tuned model is saved with its code and read here again."""
        import transformers

        model = encoder(
            ATTENTION["ragged"], headjax.tasks.Classification(classes=2, names=("no", "yes")), vocab_size=300
        )
        headjax.to_huggingface(model.replace(tokenizer=headjax.byte_tokenizer()), tmp_path / "out")
        there = transformers.pipeline("text-classification", str(tmp_path / "out"), trust_remote_code=True)
        assert there("yes")[0]["label"] in ("no", "yes")
        there.model.save_pretrained(tmp_path / "again")
        assert max_difference(model, tmp_path / "again") < 1e-6
        assert (tmp_path / "again" / "layers_headjax.py").is_file()


def test_what_has_no_code_is_refused(tmp_path):
    translation = tiny.model(headjax.EncoderDecoderConfig.transformer_base(
        vocab_size=20, width=8, num_layers=1, decoder_layers=1, hidden=8, attention=PAIR, max_length=8
    ))  # fmt: skip
    with pytest.raises(headjax.HeadjaxError, match="layout remote: no code computes encoder_decoder models"):
        headjax.to_huggingface(translation, tmp_path / "out", "remote")
    with pytest.raises(headjax.HeadjaxError, match=r"^family: the layout remote has none"):
        headjax.to_huggingface(encoder(ATTENTION["ragged"]), tmp_path / "out", "remote", family="bert")


def test_a_config_that_describes_no_model_is_an_error(tmp_path):
    headjax.to_huggingface(encoder(ATTENTION["ragged"]), tmp_path / "out")
    rewrite(tmp_path / "out", headjax_layers=[{"kind": "multi_heads", "hidden": 3}] * 2)
    with pytest.raises(
        headjax.HeadjaxError, match=r"config.json: headjax.attention\[0\].kind: .*did you mean 'multi_head'"
    ):
        headjax.from_huggingface(tmp_path / "out")
    rewrite(tmp_path / "out", headjax_layers=None)
    with pytest.raises(headjax.HeadjaxError, match=r"config.json: headjax_layers: expected a list"):
        headjax.from_huggingface(tmp_path / "out")
