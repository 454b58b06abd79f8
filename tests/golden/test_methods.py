"""Golden results of every method: scores, orders, ablations, gates, repairs, conversions and shrinking."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import headjax
from headjax.heads.orders import ORDERS
from tests.golden.results import CLOSE, by_head, compare, drawn, summary
from tests.golden.test_families import FAMILIES, batch, family, labelled, outputs

LLAMA, BERT, T5, PLAIN = (
    "LlamaForCausalLM", "BertForMaskedLM", "T5ForConditionalGeneration", "LlamaForCausalLM yarn, cut between pairs"
)  # fmt: skip


@functools.cache
def model_of(name: str) -> headjax.Model:
    with tempfile.TemporaryDirectory() as folder:
        return family(name, Path(folder))


@functools.cache
def batches_of(name: str) -> tuple[dict[str, np.ndarray], ...]:
    return tuple(labelled(name, seed) for seed in (1, 2))


def logits(name: str, model: Any) -> np.ndarray:
    return outputs(model, batch(FAMILIES[name]["config"]))["logits"]


@pytest.mark.parametrize("name", [LLAMA, BERT])
def test_scores_and_ablations(name):
    model, batches = model_of(name), batches_of(name)
    results: dict[str, Any] = {
        f"score/{key}": by_head(v) for key, v in headjax.score_heads(model, batches).values.items()
    }
    gates = {site.path: 0.5 * np.ones(site.shape, np.float32) for site in headjax.attention_sites(model)}
    gated = headjax.score_heads(model, batches, gates=gates)
    results |= {f"gated/{key}": by_head(values) for key, values in gated.values.items()}
    for mode in ("each", "all-but-one", "group"):
        found = headjax.ablate(model, batches, mode)
        results |= {"baseline": found.baseline["loss"], f"ablated/{mode}": found.ablated["loss"]}
    for distribution in (headjax.HardConcrete(weight=0.01), headjax.Subset(count=5)):
        learned = headjax.learn_gates(model, batches, distribution, steps=4, learning_rate=0.05)
        results[f"gates/{type(distribution).__name__}"] = by_head(learned.logits)
    compare("methods.npz", f"scores {name}", results)


WALKED = ("importance_layer", "reconstruction")
"""Orders that differ where there is a memory."""


@pytest.mark.parametrize("name", [LLAMA, T5])
def test_orders(name):
    model, batches = model_of(name), batches_of(name)
    heads = sorted(headjax.all_heads(model.config), key=str)
    asked = {by: headjax.OrderConfig(by=by, gate_steps=4) for by in ORDERS if name == LLAMA or by in WALKED}
    if name == LLAMA:
        grouped = {f"{by} of groups": by for by in ("importance", "ablation", "reconstruction")}
        asked |= {key: headjax.OrderConfig(by=by, whole_groups=True) for key, by in grouped.items()}
    results = {}
    for key, config in asked.items():
        order = list(headjax.order_heads(model, batches, config, count=3))
        results[key] = np.array([order.index(head) for head in heads], np.float32)
    compare("methods.npz", f"orders {name}", results)


def loss(model: headjax.Model, batch: Any) -> jax.Array:
    """Cross-entropy of each example's tokens: with a loss of one's own no walk is taken."""
    found, labels = jax.nn.log_softmax(model(batch).logits), batch["labels"]
    picked = jnp.take_along_axis(found, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -jnp.where(labels >= 0, picked, 0.0).sum(-1)


REPAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (LLAMA, {}),
    "share": (LLAMA, {"share": 0.5}),
    "feed-forward": (LLAMA, {"feed_forward": True}),
    "units": (LLAMA, {"units": 0.25}),
    "units of a layer": (BERT, {"units": {("encoder", 0): 5}}),
    "memory": (T5, {"feed_forward": True}),
    "loss": (LLAMA, {"loss": loss}),
    "loss of a memory": (T5, {"loss": loss}),
    "converted": (BERT, {}),
}


@pytest.mark.parametrize("repair", REPAIRS)
def test_repairs(repair):
    name, options = REPAIRS[repair]
    model = model_of(name)
    order = sorted(headjax.all_heads(model.config), key=str)
    removed = headjax.order_heads(model, batches_of(name), "importance") if "share" in options else order[1::3]
    if repair == "converted":
        options = {"converted": headjax.convert(model, "latent:rank=10").model}
    found = headjax.reconstruct(model, batches_of(name), removed, **options)
    compare("methods.npz", f"repair {repair}", {"logits": logits(name, found.model)}, lambda key: 5e-5)


CONVERSIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped:kv_heads=1": (LLAMA, {}),
    "grouped:kv_heads=2,pooling=mean": (PLAIN, {}),
    "latent:rank=6": (LLAMA, {}),
    "fixed:head_dim=2": (BERT, {}),
    "fixed:head_dim=12": (LLAMA, {}),
    "latent:rank=10": (BERT, {}),
    "grouped:kv_heads=2": (T5, {}),
    "deep:heads=2": (BERT, {}),
    "collaborative:shared_dim=8": (T5, {}),
    "latent:rank=4": (LLAMA, {"reconstruct": True}),
    "grouped:kv_heads=4": (PLAIN, {"layers": [1]}),
}


@pytest.mark.parametrize("to", CONVERSIONS)
def test_conversions(to):
    name, options = CONVERSIONS[to]
    model, results = model_of(name), {}
    for way, batches in {"plain": None, "calibrated": batches_of(name)}.items():
        if (batches is None) == ("reconstruct" in options):
            continue
        found = headjax.convert(model, to, batches=batches, **options)
        results[f"{way}/logits"] = logits(name, found.model)
        errors = np.array([error.relative_error for error in found.errors], np.float32)
        results[f"{way}/errors"] = np.where(errors < 1e-5, 0.0, errors)  # of exact conversions rounding is left
    compare("methods.npz", f"convert {to}", results, lambda key: 2e-2 if "collaborative" in to else 2e-5)


SHRUNK: dict[str, tuple[str, dict[str, float], dict[str, Any]]] = {
    "parameters": (BERT, {"parameters": 0.6}, {}),
    "flops, uniform": (BERT, {"flops": 0.6}, {"uniform": True}),
    "cache": (LLAMA, {"cache": 0.5, "parameters": 0.8}, {}),
    "native": (LLAMA, {"parameters": 0.7}, {"native": True}),
    "loss": (BERT, {"parameters": 0.6}, {"loss": loss}),
}


@pytest.mark.parametrize("budget", SHRUNK)
def test_shrinking(budget):
    name, amounts, options = SHRUNK[budget]
    if "loss" not in options:
        levels = (headjax.SubLayerSize(1.0, "grouped", 0.5), headjax.SubLayerSize(1.0, "latent", 0.5))
        space = headjax.SearchSpace(
            heads=(0.5,), units=(0.5,), cached=levels, others=(headjax.SubLayerSize(1.0, "fixed", 0.5),)
        )
        options = options | {"measuring": headjax.MeasureConfig(space=space)}
    found = headjax.shrink(model_of(name), list(batches_of(name)), headjax.Budget(**amounts), **options)
    results = {"logits": logits(name, found.model), "damage": np.array([point.damage for point in found.frontier])}
    gone = set(map(str, found.removed))
    heads = sorted(map(str, headjax.all_heads(model_of(name).config)))
    results["removed"] = np.array([head in gone for head in heads], np.float32)
    compare("methods.npz", f"shrink {budget}", results, lambda key: 5e-5)


class Mixer(nnx.Module):
    """Two attention layers of Flax, between them a residual stream."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        make = functools.partial(nnx.MultiHeadAttention, num_heads=4, in_features=16, decode=False, rngs=rngs)
        self.layers = nnx.List([make(), make()])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_a_model_of_flax():
    model = Mixer(nnx.Rngs(0))
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        parameter[...] = jnp.asarray(3 * drawn("/".join(map(str, path)), list(parameter.shape)))
    batches = [drawn(f"input {i}", [3, 5, 16]) for i in range(2)]
    answers = nnx.jit(lambda model: model(batches[0]))

    def squares(model: Mixer, x: jax.Array) -> jax.Array:
        return ((model(x) - 1.0) ** 2).mean((1, 2))

    scores = headjax.score_heads(model, batches, loss=squares)
    results = {f"score/{key}": by_head(values) for key, values in scores.values.items()}
    results["ablated"] = headjax.ablate(model, batches, loss=squares).ablated["loss"]
    heads = sorted(scores.score("importance"), key=str)
    for by in ("importance_layer", "reconstruction"):
        order = list(headjax.order_heads(model, batches, by, loss=squares))
        results[f"order/{by}"] = np.array([order.index(head) for head in heads], np.float32)
    results["pruned"] = summary(answers(headjax.prune(model, heads[::3])), 128)
    repaired = headjax.reconstruct(model, batches, heads[::3], loss=squares).model
    results["reconstructed"] = summary(answers(repaired), 128)
    for to in ("grouped:kv_heads=2", "latent:rank=12", "fixed:head_dim=8"):
        results[f"replaced/{to}"] = summary(answers(headjax.replace_attention(model, to)), 128)
    tree = {name: {"out": model.layers[i].out.kernel[...]} for i, name in enumerate(("first", "second"))}

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        filled = nnx.clone(model)
        for layer, name in zip(filled.layers, tree, strict=True):
            layer.out.kernel[...] = params[name]["out"]
        return filled(x)

    sites = {"first": ("first/out", 0), "second": ("second/out", 0)}
    by_tree = headjax.score_heads(
        (apply, tree, sites), batches, loss=lambda call, x: ((call(x) - 1.0) ** 2).mean((1, 2))
    )
    results |= {f"tree/{key}": by_head(values) for key, values in by_tree.values.items()}
    compare("methods.npz", "flax", results, lambda key: 5e-5 if key.endswith("reconstructed") else CLOSE)
