"""The code of the layout `remote` among the tools of `transformers`: caches, masks, adapters, other tasks, saving."""

import importlib.util
import json

import numpy as np
import pytest

import headjax
from tests import tiny
from tests.hub.directories import rewrite
from tests.hub.remote_models import ATTENTION, DECODERS, decoder, encoder, parity, read_there, vision

pytestmark = parity

if importlib.util.find_spec("torch") is not None:
    import torch

TOKENS = np.random.default_rng(0).integers(1, tiny.VOCABULARY, (2, 8))
NEW = 5
CACHED = [*ATTENTION, *DECODERS]
FEW = ["a layer without heads", "latent", "around others", "Gemma"]


def export(model, folder):
    headjax.to_huggingface(model, folder, "remote")
    return folder


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """Decoders of every formulation and family in PyTorch, each exported once."""
    loaded = {}

    def load(name):
        if name not in loaded:
            model = decoder(ATTENTION.get(name, ATTENTION["ragged"]), max_length=24, **DECODERS.get(name, {}))
            loaded[name] = export(model, tmp_path_factory.mktemp("decoder") / "out")
        return read_there(loaded[name], "AutoModelForCausalLM")

    return load


def greedy(model, tokens, new=NEW):
    """The tokens that follow, computed from the whole text each time."""
    with torch.no_grad():
        for _ in range(new):
            following = model(tokens, use_cache=False).logits[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, following], dim=1)
    return tokens


def generated(model, tokens, mask=None, **options):
    mask = torch.ones_like(tokens) if mask is None else mask
    how = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": 0} | options
    return model.generate(tokens, attention_mask=mask, **how)


def close(ours, theirs, bound=1e-4):
    return ours.shape == theirs.shape and (ours - theirs).abs().max() < bound


@pytest.mark.parametrize("name", CACHED)
def test_text_is_the_same_with_every_cache(name, decoders):
    model, tokens = decoders(name), torch.from_numpy(TOKENS)
    expected = greedy(model, tokens)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), tokens], dim=1)
    present = (torch.arange(11) >= 3).long().expand(2, -1)
    for options in ({}, {"cache_implementation": "static"}):
        assert torch.equal(generated(model, tokens, **options), expected), options
        assert torch.equal(generated(model, padded, present, **options)[:, 3:], expected), options
    beams = [generated(model, tokens, num_beams=3, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*beams)
    assert torch.equal(generated(model, tokens[:1], assistant_model=decoders("ragged")), expected[:1])
    assert torch.equal(generated(model, tokens[:1], prompt_lookup_num_tokens=2), expected[:1])


def test_a_prompt_may_be_read_in_parts(decoders):
    """Into a static cache, which must not take the shapes of layers from config.json."""
    model, tokens = decoders("a layer without heads"), torch.from_numpy(TOKENS)
    in_parts = generated(model, tokens, cache_implementation="static", prefill_chunk_size=3)
    assert torch.equal(in_parts, greedy(model, tokens))


@pytest.mark.parametrize("name", FEW)
def test_a_cache_can_be_cut_and_filled_again(name, decoders):
    """Under both names that `transformers` gave it."""
    model, tokens = decoders(name), torch.from_numpy(TOKENS)
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        for keyword in ("past_key_values", "cache"):
            cache = model(tokens, use_cache=True)[1]
            cache.crop(-3)
            assert close(model(tokens[:, -3:], **{keyword: cache}).logits, whole[:, -3:])
        assert close(model(tokens, logits_to_keep=2).logits, whole[:, -2:])
        assert close(model(tokens, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]])


@pytest.mark.parametrize("name", FEW)
def test_documents_in_one_row_do_not_read_each_other(name, decoders):
    """Told apart by positions that begin again, or by a mask of four dimensions, boolean or of numbers."""
    model, first, second = decoders(name), torch.from_numpy(TOKENS[:1, :3]), torch.from_numpy(TOKENS[1:, :6])
    both, positions = torch.cat([first, second], dim=1), torch.cat([torch.arange(3), torch.arange(6)])[None]
    document = torch.tensor([0] * 3 + [1] * 6)
    seen = ((document[:, None] == document) & torch.ones(9, 9).tril().bool())[None, None]
    with torch.no_grad():
        alone = model(second, use_cache=False).logits
        for mask in (None, seen, torch.zeros(seen.shape).masked_fill(~seen, -1e9)):
            packed = model(both, attention_mask=mask, position_ids=positions, use_cache=False).logits
            assert close(packed[:, 3:], alone)


@pytest.mark.parametrize("name", FEW)
def test_attention_weights_and_hidden_states(name, decoders):
    model, tokens = decoders(name), torch.from_numpy(TOKENS)
    with torch.no_grad():
        shown = model(tokens, output_attentions=True, output_hidden_states=True)
        assert close(shown.logits, model(tokens).logits)
    assert [weights.shape[2:] for weights in shown.attentions] == [(8, 8), (8, 8)]
    assert all(close(weights.sum(-1), torch.ones(weights.shape[:3])) for weights in shown.attentions if weights.numel())
    assert all(not weights.triu(1).any() for weights in shown.attentions)
    assert close(shown.hidden_states[-1], model.model(tokens)[0])
    assert isinstance(model(tokens, return_dict=False), tuple)
    ignored = model.config.keys_to_ignore_at_inference
    assert isinstance(ignored, list)  # Trainer adds another
    assert set(ignored) == {"past_key_values", "cache"}


@pytest.mark.parametrize("name", ["latent", "Gemma"])
def test_half_precision_and_compiled(name, decoders, tmp_path):
    """Positions of hundreds of tokens are held exactly in a cache of bfloat16."""
    import transformers

    model = decoder(ATTENTION.get(name, ATTENTION["ragged"]), **DECODERS.get(name, {}) | {"max_length": 320})
    load = transformers.AutoModelForCausalLM.from_pretrained
    folder = export(model, tmp_path / "out")
    half = load(folder, trust_remote_code=True, dtype=torch.bfloat16).eval()
    tokens = torch.from_numpy(np.random.default_rng(1).integers(1, tiny.VOCABULARY, (1, 310)))
    with torch.no_grad():
        whole = half(tokens, use_cache=False).logits[:, -1]
        cache = transformers.StaticCache(config=half.config, max_cache_len=312)
        half(tokens[:, :-1], past_key_values=cache)
        step = half(tokens[:, -1:], past_key_values=cache).logits[:, -1]
        assert close(step.float(), whole.float(), 0.05 * float(whole.abs().max()))
        compiled = torch.compile(decoders(name), fullgraph=True, backend="eager")
        short = torch.from_numpy(TOKENS)
        assert close(compiled(short, use_cache=False).logits, decoders(name)(short, use_cache=False).logits)


class LowRank(torch.nn.Module if importlib.util.find_spec("torch") is not None else object):
    """An adapter around a map, with the map's weight as an attribute."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, 3, bias=False)
        self.up = torch.nn.Linear(3, base.out_features, bias=False)

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapted(module):
    for name, child in module.named_children():
        if type(child) is torch.nn.Linear and name != "lm_head":
            setattr(module, name, LowRank(child))
        else:
            adapted(child)


@pytest.mark.parametrize("name", FEW)
def test_adapters_and_quantized_maps_count_in_a_cached_step(name, decoders):
    torch.manual_seed(0)
    model, tokens = decoders(name), torch.from_numpy(TOKENS)
    before = model(tokens, use_cache=False).logits
    adapted(model)
    quantized = torch.ao.quantization.quantize_dynamic(decoders(name), {torch.nn.Linear})
    for changed, bound in ((model, 1e-4), (quantized, 0.1)):
        with torch.no_grad():
            whole = changed(tokens, use_cache=False).logits[:, -1]
            cache = changed(tokens[:, :-1], use_cache=True).past_key_values
            step = changed(tokens[:, -1:], past_key_values=cache).logits[:, -1]
        assert close(step, whole, bound * float(whole.abs().max()))
    assert (model(tokens, use_cache=False).logits - before).abs().max() > 0.01


def test_training_with_checkpoints_and_without_is_the_same(decoders):
    model, tokens = decoders("around others").train(), torch.from_numpy(TOKENS)

    def gradients():
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=True).loss.backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    plain = gradients()
    model.gradient_checkpointing_enable()
    assert all(close(array, plain[name]) for name, array in gradients().items())


UNKNOWN = {
    "AutoModelForImageClassification": lambda: vision(ATTENTION["ragged"]),
    "AutoModelForCausalLM": lambda: decoder(ATTENTION["ragged"]),
    "AutoModelForSequenceClassification": lambda: decoder(
        ATTENTION["ragged"], task=headjax.tasks.Classification(classes=3)
    ),
}


@pytest.mark.parametrize("auto", UNKNOWN)
def test_an_argument_that_is_not_known_is_an_error(auto, tmp_path):
    model = read_there(export(UNKNOWN[auto](), tmp_path / "out"), auto)
    inputs = {"pixel_values": torch.zeros(1, 3, 8, 8)} if "Image" in auto else {"input_ids": torch.from_numpy(TOKENS)}
    assert model(**inputs, output_attentions=True).attentions is not None
    with pytest.raises(TypeError, match="past_keys"):
        model(**inputs, past_keys=None)
    if "Image" not in auto:
        embedded = model(inputs_embeds=model.get_input_embeddings()(inputs["input_ids"]))
        assert close(embedded[0], model(**inputs)[0])
        with pytest.raises(ValueError, match="one of input_ids and inputs_embeds"):
            model()


def test_segments_that_the_model_does_not_have(tmp_path):
    model = read_there(export(encoder(ATTENTION["ragged"], segments=0), tmp_path / "out"), "AutoModel")
    tokens = torch.from_numpy(TOKENS)
    assert close(model(tokens, token_type_ids=torch.zeros_like(tokens))[0], model(tokens)[0])
    with pytest.raises(ValueError, match="token_type_ids: the model has one segment"):
        model(tokens, token_type_ids=torch.ones_like(tokens))


def test_a_span_outside_the_text_carries_no_loss(tmp_path):
    model = read_there(
        export(encoder(ATTENTION["ragged"], headjax.tasks.Span(dropout=0.0)), tmp_path / "out"),
        "AutoModelForQuestionAnswering",
    )
    tokens = torch.from_numpy(TOKENS)
    inside = model(tokens[:1], start_positions=torch.tensor([1]), end_positions=torch.tensor([3])).loss
    outside = model(tokens, start_positions=torch.tensor([1, 8]), end_positions=torch.tensor([3, 500])).loss
    assert close(inside, outside)


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification", "single_label_classification"])
def test_the_loss_is_that_of_the_problem(problem, tmp_path):
    """As `transformers` decides it from labels where config.json does not say."""
    import transformers

    classes = 1 if problem == "regression" else 3
    folder = export(encoder(ATTENTION["ragged"]), tmp_path / "out")
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    model = load(folder, trust_remote_code=True, num_labels=classes).eval()
    losses = torch.nn.functional
    labels, loss = {
        "regression": ([[0.5], [1.0]], losses.mse_loss),
        "single_label_classification": ([0, 2], losses.cross_entropy),
        "multi_label_classification": ([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]], losses.binary_cross_entropy_with_logits),
    }[problem]
    output = model(torch.from_numpy(TOKENS), labels=torch.tensor(labels))
    assert close(output.loss, loss(output.logits, torch.tensor(labels)))
    assert model.config.problem_type == problem


CLASSIFIER, RAGGED = "AutoModelForSequenceClassification", ATTENTION["ragged"]
NAMES = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
SAVED = {
    "a classifier's base": (
        lambda: encoder(RAGGED, headjax.tasks.Classification(classes=3)),
        "AutoModel",
        {},
        headjax.tasks.NoTask,
    ),
    "a classifier": (
        lambda: encoder(ATTENTION["latent"], pooler=None),
        CLASSIFIER,
        NAMES,
        headjax.tasks.Classification,
    ),
    "masked tokens by weights of their own": (
        lambda: encoder(RAGGED, headjax.tasks.MaskedLanguageModel()),
        "AutoModelForMaskedLM",
        {"tie_word_embeddings": False},
        headjax.tasks.MaskedLanguageModel,
    ),
    "a decoder's classifier": (
        lambda: decoder(RAGGED, tied=False),
        CLASSIFIER,
        {"num_labels": 4, "pad_token_id": 0},
        headjax.tasks.Classification,
    ),
    "a decoder's base": (lambda: decoder(ATTENTION["grouped"], tied=False), "AutoModel", {}, headjax.tasks.NoTask),
    "a decoder": (lambda: decoder(ATTENTION["grouped"], tied=False), "AutoModelForCausalLM", {}, type(None)),
}


@pytest.mark.parametrize("name", SAVED)
def test_another_task_or_vocabulary_is_read_again(name, tmp_path):
    """What `save_pretrained` writes, after three tokens more, too."""
    import transformers

    make, auto, changes, task = SAVED[name]
    folder = export(make(), tmp_path / "out")
    load = getattr(transformers, auto).from_pretrained
    model = load(folder, trust_remote_code=True, ignore_mismatched_sizes=True, **changes).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        assert parameter.isfinite().all()
        parameter.data.add_(0.1 * torch.randn(parameter.shape))
    inputs = {"input_ids": torch.from_numpy(TOKENS)}
    for added in (0, 3):
        if added:
            model.resize_token_embeddings(tiny.VOCABULARY + added)
        model.save_pretrained(tmp_path / str(added))
        again = headjax.from_huggingface(tmp_path / str(added))
        assert type(again.config.task) is task
        ours = again({name: array.numpy() for name, array in inputs.items()})
        theirs = model(**inputs)[0].detach().numpy()
        ours = ours.hidden if auto == "AutoModel" else ours.logits
        assert np.abs(np.asarray(ours) - theirs).max() < 1e-4
        assert headjax.to_huggingface(again, tmp_path / f"again {added}").layout == "remote"
    if "id2label" in changes:
        assert again.config.task.names == ("a", "b", "c")


def test_a_task_that_the_code_does_not_have_is_an_error(tmp_path):
    folder = export(decoder(ATTENTION["ragged"]), tmp_path / "out")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["HeadjaxForCausalLM"]
    for named in (["HeadjaxForTokenClassification"], [], None):
        rewrite(folder, architectures=named)
        with pytest.raises(
            headjax.HeadjaxError, match=r"config.json: architectures: expected one of HeadjaxModel, Headjax"
        ):
            headjax.from_huggingface(folder)
