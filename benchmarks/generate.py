"""`python -m benchmarks generate`: prefill and decode of a Llama shape, whole and smaller, beside transformers.

With `--models DIRECTORY ...` these decoders are timed after each context instead, beside the first of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.result import BenchResult, pytorch
from benchmarks.speed import DecodingCost, Rates, decoding_cost, peak_rates
from headjax.conversion import convert
from headjax.core import numbers
from headjax.core.progress import Progress, silent
from headjax.core.tensors import count
from headjax.core.timing import Timing
from headjax.heads.head_id import HeadId
from headjax.heads.pruning import prune
from headjax.hub import to_huggingface
from headjax.hub.either import read_model
from headjax.models.decoder import DecoderConfig
from headjax.models.generation import begin
from headjax.models.model import Model
from headjax.nn import GroupedAttention, Kind
from headjax.nn.block import Compute
from headjax.nn.norms import RMSNorm
from headjax.nn.rotary import RotaryHalves
from headjax.report.tables import Column, Table


class Shape(NamedTuple):
    """The measured model and requests.

    Attributes:
        width, layers, heads, kv_heads, head_dim, hidden, vocabulary: sizes of the model.
        prompt, new: numbers of tokens that are read, and generated.
        batches: numbers of prompts.
        repeats: timed runs of each candidate.
        contexts: lengths of prompts after which decoding is measured alone, for one prompt.
    """

    width: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    hidden: int = 1408
    vocabulary: int = 32_000
    prompt: int = 256
    new: int = 128
    batches: tuple[int, ...] = (1, 8)
    repeats: int = 7
    contexts: tuple[int, ...] = (256, 1024, 4096)


Run = tuple[float, float, np.ndarray]
"""Seconds until the first token of every continuation, seconds of the others, and the tokens `[batch, new]`."""


class Measurement(NamedTuple):
    """A candidate at one batch size.

    Attributes:
        prefill, decode: seconds of a run.
        read, made: tokens of all prompts, and tokens that were decoded.
        tokens: `[batch, new]` the continuations, the same in every run.
    """

    prefill: Timing
    decode: Timing
    read: int
    made: int
    tokens: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """Return times and rates as JSON data."""
        return {
            "prefill": self.prefill._asdict(),
            "decode": self.decode._asdict(),
            "prefill_tokens_per_second": self.read / self.prefill.median,
            "decode_tokens_per_second": self.made / self.decode.median,
        }


PEER, WHOLE = "transformers", "whole"
AFTER, AGAIN = 32, 3
"""Tokens that are decoded after each context, and runs."""


def run(progress: Progress = silent, shape: Shape = Shape(), models: Sequence[Path] = ()) -> BenchResult:
    """Measure all candidates in turns, greedy, with the same random weights on both sides.

    Raises:
        HeadjaxError: PyTorch or transformers is not installed.
    """
    if models:
        return _of_directories(models, shape, progress)
    compute = Compute(dtype="bfloat16" if jax.default_backend() == "gpu" else "float32")
    candidates = variants(llama(shape), shape)
    sides = {PEER: _peer(candidates[WHOLE], shape, compute)}
    sides |= {name: _ours(model, shape, compute) for name, model in candidates.items()}
    found: dict[int, dict[str, Measurement]] = {}
    contexts: dict[int, dict[str, dict[str, Any]]] = {}
    with progress("generating", len(shape.batches) + len(shape.contexts), "comparison") as bar:
        for batch in shape.batches:
            found[batch] = _in_turns(sides, batch, shape)
            bar(len(found), {})
        for context in shape.contexts:
            contexts[context] = _after(candidates, shape, context, compute)
            bar(len(found) + len(contexts), {})
    rates = peak_rates(compute.dtype)

    def of(name: str, size: int) -> Cost:
        return Cost.of(candidates[name].config, shape, compute, size)

    ours: dict[str, dict[str, Any]] = {}
    for name, model in candidates.items():
        ours[name] = {
            str(size): timings[name].to_json() | _against(timings, of(name, size), of(WHOLE, size), name, rates)
            for size, timings in found.items()
        }
        ours[name] |= {"parameters": count(model.config.tensors()), "cache_bytes_per_token": of(name, 1).cache}
        ours[name]["contexts"] = {str(context): rows[name] for context, rows in contexts.items()}
    peer = {str(size): timings[PEER].to_json() for size, timings in found.items()}
    ratio = max(timings[WHOLE].decode.median / timings[PEER].decode.median for timings in found.values())
    tables = [_table(size, timings, ours, shape, compute) for size, timings in found.items()]
    return BenchResult(ours, peer, ratio, (*tables, _context_table(contexts)), ("torch", "transformers"))


def _of_directories(models: Sequence[Path], shape: Shape, progress: Progress) -> BenchResult:
    """Time the decoders of some directories after each context, in turns; the last context makes the ratio."""
    opened = {folder.name: read_model(folder) for folder in models}
    shape = shape._replace(vocabulary=min(getattr(model.config, "vocab_size", 2) for model in opened.values()))
    with progress("generating", len(shape.contexts), "context") as bar:
        contexts = {}
        for context in shape.contexts:
            contexts[context] = _after(opened, shape, context, Compute())
            bar(len(contexts), {})
    whole, *smaller = (row["decode"]["median"] for row in contexts[shape.contexts[-1]].values())
    ours = {str(context): rows for context, rows in contexts.items()}
    return BenchResult(ours, {}, smaller[0] / whole if smaller else None, (_context_table(contexts),))


def llama(shape: Shape) -> Model:
    """Return a Llama shape with random weights."""
    attention = Kind(
        GroupedAttention, num_heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, rotary=RotaryHalves()
    )
    config = DecoderConfig(
        vocab_size=shape.vocabulary,
        max_length=max(shape.prompt + shape.new, *(context + AFTER for context in shape.contexts)),
        width=shape.width,
        num_layers=shape.layers,
        attention=(attention,) * shape.layers,
        hidden=(shape.hidden,) * shape.layers,
        activation="silu",
        gated=True,
        feed_forward_bias=False,
        norm=RMSNorm(1e-6),
        positions="none",
    )
    return Model(config, config.initialize(jax.random.key(0)))


def variants(model: Model, shape: Shape) -> dict[str, Model]:
    """Return the original model, the one with half of its groups removed, and conversions that cache less."""
    half = range(shape.heads // 2, shape.heads)
    removed = [HeadId("decoder", layer, head) for layer in range(shape.layers) for head in half]
    rank = shape.kv_heads * shape.head_dim  # of twice as many numbers, those of keys and values
    return {
        WHOLE: model,
        "pruned by half": prune(model, removed),
        "grouped, half the cache": convert(model, f"grouped:kv_heads={shape.kv_heads // 2}").model,
        "latent, half the cache": convert(model, f"latent:rank={rank}").model,
    }


def _ours(model: Model, shape: Shape, compute: Compute) -> Callable[[np.ndarray], Run]:
    # Weights are converted once, as the command line does; the program does not hold them twice.
    model = model.unstacked(compute)

    def once(prompts: np.ndarray) -> Run:
        start = time.perf_counter()
        first = begin(model, {"input_ids": prompts}, max_new_tokens=shape.new, compute=compute)
        jax.block_until_ready(first.loop.tokens)
        middle = time.perf_counter()
        tokens = np.asarray(first.advance().tokens)
        return middle - start, time.perf_counter() - middle, tokens

    return once


def _peer(model: Model, shape: Shape, compute: Compute) -> Callable[[np.ndarray], Run]:
    """Return the same on the exported weights: one call for the prompt, then one for each token, with a cache.

    The loop is leaner than `generate` of transformers: it tests no stopping criteria and processes no logits.
    """
    torch, transformers = pytorch("generate")
    device = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        to_huggingface(model, Path(folder) / "hf")
        dtype = getattr(torch, compute.dtype)
        peer = transformers.AutoModelForCausalLM.from_pretrained(Path(folder) / "hf", dtype=dtype).eval().to(device)

    @torch.inference_mode()
    def once(prompts: np.ndarray) -> Run:
        start = time.perf_counter()
        ids = torch.from_numpy(prompts).long().to(device)
        output = peer(ids, use_cache=True, logits_to_keep=1)
        found = [output.logits[:, -1].argmax(dim=-1, keepdim=True)]
        if device == "cuda":
            torch.cuda.synchronize()
        middle = time.perf_counter()
        for _ in range(shape.new - 1):
            output = peer(found[-1], past_key_values=output.past_key_values, use_cache=True, logits_to_keep=1)
            found.append(output.logits[:, -1].argmax(dim=-1, keepdim=True))
        tokens = torch.cat(found, dim=1).cpu().numpy()
        return middle - start, time.perf_counter() - middle, tokens

    return once


def _in_turns(sides: Mapping[str, Callable[[np.ndarray], Run]], batch: int, shape: Shape) -> dict[str, Measurement]:
    """Run every candidate `repeats` times, one after another in turns; a first run of each compiles."""
    prompts = np.random.default_rng(batch).integers(1, shape.vocabulary, (batch, shape.prompt), dtype=np.int32)
    runs = {name: [once(prompts)] for name, once in sides.items()}
    for _ in range(shape.repeats):
        for name, once in sides.items():
            runs[name].append(once(prompts))
    tokens = batch * shape.prompt, batch * (shape.new - 1)
    found = {}
    for name, (first, *timed) in runs.items():
        prefill, decode, _ = zip(*timed, strict=True)
        found[name] = Measurement(Timing.of(list(prefill)), Timing.of(list(decode)), *tokens, first[2])
    return found


def _after(models: Mapping[str, Model], shape: Shape, context: int, compute: Compute) -> dict[str, dict[str, Any]]:
    """Return the speed of decoding after a prompt of a length, and what a step reads and computes, by variant."""
    shape = shape._replace(prompt=context, new=AFTER, repeats=AGAIN)
    found = _in_turns({name: _ours(model, shape, compute) for name, model in models.items()}, 1, shape)
    rows = {}
    for name, timing in found.items():
        cost = Cost.of(models[name].config, shape, compute)
        rows[name] = {
            "decode_tokens_per_second": timing.made / timing.decode.median,
            "decode": timing.decode._asdict(),
            "bytes_per_step": cost.step.bytes,
            "flops_per_step": cost.step.flops,
            "cache_bytes_per_token": cost.cache,
        }
    return rows


class Cost(NamedTuple):
    """Cost of a prompt and of the decoding steps after it.

    Attributes:
        cache: bytes of keys and values that a token adds to a long cache.
        prompt: FLOPs of a prompt.
        step: cost of a step of the batch with the cache full.
    """

    cache: int
    prompt: int
    step: DecodingCost

    @classmethod
    def of(cls, config: Any, shape: Shape, compute: Compute, batch: int = 1) -> Cost:
        """Count them for a decoder."""
        width = config.width
        held = sum(attention.module(width, width).cache_size() for attention in config.attention)
        layers = config.stacks()["decoder"].layers
        prompt = sum(layer.flops(shape.prompt) for layer in layers) + 2 * width * shape.vocabulary
        step = decoding_cost(config, shape.prompt + shape.new, batch, compute)
        return cls(compute.type.itemsize * held, prompt, step)


def _against(timings: Mapping[str, Measurement], cost: Cost, whole: Cost, name: str, rates: Rates) -> dict[str, Any]:
    """Return the speed-ups of a variant over the original model, measured and predicted, and over the peer.

    A step is predicted to take the longer of its bytes' and its FLOPs' time at the machine's peak rates, a prompt the
    time of its FLOPs.
    """
    mine, peer = timings[name], timings[PEER]
    return {
        "prefill_over_peer": peer.prefill.median / mine.prefill.median,
        "decode_over_peer": peer.decode.median / mine.decode.median,
        "prefill_speed_up": timings[WHOLE].prefill.median / mine.prefill.median,
        "prefill_speed_up_predicted": whole.prompt / cost.prompt,
        "decode_speed_up": timings[WHOLE].decode.median / mine.decode.median,
        "decode_speed_up_predicted": whole.step.seconds(rates) / cost.step.seconds(rates),
        "same_tokens_as_peer": float((mine.tokens == peer.tokens).mean()) if name == WHOLE else None,
    }


def _table(
    batch: int, timings: Mapping[str, Measurement], ours: Mapping[str, Any], shape: Shape, compute: Compute
) -> Table:
    columns = (
        Column(f"Batch {batch}"),
        Column("Prefill, tokens/s", numbers.significant, "higher"),
        Column("Quartiles", numbers.text),
        Column("Decode, tokens/s", numbers.significant, "higher"),
        Column("Quartiles", numbers.text),
        Column("Over the peer", numbers.significant, "higher"),
        Column("Speed-up", numbers.significant),
        Column("Predicted", numbers.significant),
        Column("Reached", numbers.percent),
    )
    rows = []
    for name, found in timings.items():
        known = ours[name][str(batch)] if name in ours else {}
        measured, predicted = known.get("decode_speed_up"), known.get("decode_speed_up_predicted")
        rates = (*_rates(found.prefill, found.read), *_rates(found.decode, found.made))
        reached = measured / predicted if measured and predicted else None
        rows.append((name, *rates, known.get("decode_over_peer"), measured, predicted, reached))
    same = ours[WHOLE][str(batch)]["same_tokens_as_peer"]
    notes = (
        f"Llama shape of {ours[WHOLE]['parameters']:,} parameters, random weights, {compute.dtype}, prompts of "
        f"{shape.prompt} tokens and {shape.new} new ones, greedy, {shape.repeats} runs in turns, medians.",
        f"Speed-ups in decoding. {same:.0%} of the unpruned model's tokens are the peer's.",
    )
    return Table(columns, rows, notes=notes)


def _rates(timing: Timing, tokens: int) -> tuple[float, str]:
    """Tokens a second by the median, and the quartiles in words."""
    low, high = (numbers.significant(tokens / seconds) for seconds in (timing.high, timing.low))
    return tokens / timing.median, f"{low}, {high}"


def _context_table(contexts: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> Table:
    columns = (
        Column("Context"),
        Column("Model"),
        Column("Cached, bytes a token", numbers.count),
        Column("Moved, bytes a step", numbers.size),
        Column("FLOPs a step", numbers.flops),
        Column("Decode, tokens/s", numbers.significant, "higher"),
    )
    keys = ("cache_bytes_per_token", "bytes_per_step", "flops_per_step", "decode_tokens_per_second")
    rows = [
        (f"{context:,}", name, *(row[key] for key in keys))
        for context, by in contexts.items()
        for name, row in by.items()
    ]
    note = f"One prompt of each length, {AFTER} new tokens, {AGAIN} runs in turns, medians."
    return Table(columns, rows, notes=(note,))
