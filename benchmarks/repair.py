"""`python -m benchmarks repair --models DIRECTORY`: output projections refitted, beside K-prune's recipe in PyTorch.

Half of an encoder's heads go, the same in both. The peer is ours, written after arXiv 2308.03449, section 4.4: layer by
layer, W_O and its bias of the kept heads are solved by least squares, so that the stream of the pruned model meets the
original's. It keeps the streams of all examples between two layers, as headjax does; it has no ridge and no held-out
examples. BERT, RoBERTa and MPNet of transformers.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

import headjax
from benchmarks.result import BenchResult, pytorch
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.progress import Progress, silent
from headjax.core.timing import Timing
from headjax.heads.agreement import agreement
from headjax.hub.either import read_model
from headjax.models.config import Batch
from headjax.models.model import Model
from headjax.report.tables import Column, Table

EXAMPLES, JUDGED, CHARACTERS, BATCH = 512, 256, 128, 32
"""Texts that are calibrated on and judged on, their characters, and texts of a batch."""

REPEATS = 3
SHARE = 0.5


def run(progress: Progress = silent, models: Sequence[Path] = ()) -> BenchResult:
    """Refit in turns, and compare the sentences' vectors of both results with the original's on other texts.

    Raises:
        HeadjaxError: there is not one directory, or PyTorch or transformers is not installed.
    """
    if len(models) != 1:
        raise HeadjaxError("--models: names one encoder's directory")
    model = read_model(models[0])
    batches, judged = _batches(model)
    removed = headjax.order_heads(model, batches[:4], "importance", loss=_change)[: _count(model)]
    seconds: dict[str, list[float]] = {"headjax": [], "PyTorch": [], "a pass": []}
    results: dict[str, Model] = {}
    peer = _Peer(models[0], removed)
    forward = headjax.gated(model, {})
    with progress("refitting", REPEATS + 1, "turn") as bar:
        for turn in range(REPEATS + 1):
            start = time.perf_counter()
            results["headjax"] = headjax.reconstruct(model, batches, removed).model
            middle = time.perf_counter()
            student = peer.refitted(batches)
            end = time.perf_counter()
            for batch in batches:
                np.asarray(forward(batch).hidden)
            if turn:  # the first one compiles
                for name, each in zip(seconds, (middle - start, end - middle, time.perf_counter() - end), strict=True):
                    seconds[name].append(each)
            bar(turn + 1, {})
    apart = {"not repaired": agreement(model, headjax.prune(model, removed), judged).distance}
    apart |= {
        "headjax": agreement(model, results["headjax"], judged).distance,
        "PyTorch": peer.apart(student, judged),
    }
    timings = {name: Timing.of(each) for name, each in seconds.items()}
    rows: list[tuple[Any, ...]] = [
        (name, timings[name].median, timings[name].median / timings["a pass"].median, apart.get(name))
        for name in timings
    ]
    rows.append(("not repaired", None, None, apart["not repaired"]))
    columns = (
        Column("Side"),
        Column("Time", numbers.duration, "lower"),
        Column("in passes", numbers.significant),
        Column("1 - cosine on other texts", numbers.significant, "lower"),
    )
    note = f"{len(removed)} heads go; {EXAMPLES} texts of {CHARACTERS} characters; {JUDGED} others judge."
    table = Table(columns, rows, notes=(note,))
    ours, theirs = ({"seconds": timings[name].median, "apart": apart[name]} for name in ("headjax", "PyTorch"))
    return BenchResult(ours, theirs, ours["seconds"] / theirs["seconds"], (table,), ("torch", "transformers"))


def _change(model: Any, batch: Batch) -> Any:
    """Return a number for each example that depends on its sentence's vector."""
    return (model(batch).hidden[:, 0] ** 2).mean(axis=-1)


def _count(model: Model) -> int:
    return round(SHARE * len(headjax.all_heads(model.config)))


def _batches(model: Model) -> tuple[list[Batch], list[Batch]]:
    """Return batches of Python's help texts: those that are calibrated on, and those that judge."""
    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    texts = [text[at : at + CHARACTERS] for at in range(0, (EXAMPLES + JUDGED) * CHARACTERS, CHARACTERS)]
    order = np.random.default_rng(0).permutation(len(texts))
    texts = [texts[place] for place in order]
    batches: list[Batch] = [
        headjax.text_batch(model.tokenizer, texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)
    ]
    return batches[: EXAMPLES // BATCH], batches[EXAMPLES // BATCH :]


class _Peer:
    """K-prune's refit of an encoder of transformers."""

    def __init__(self, folder: Path, removed: Sequence[headjax.HeadId]) -> None:
        self._torch, transformers = pytorch("repair")
        self._model = transformers.AutoModel.from_pretrained(folder).eval().requires_grad_(False)
        config = self._model.config
        self._kept = np.ones((config.num_hidden_layers, config.num_attention_heads), bool)
        for head in removed:
            self._kept[head.layer, head.head] = False

    def refitted(self, batches: Sequence[Batch]) -> Any:
        """Return a copy without the heads, its output projections refitted."""
        torch = self._torch
        teacher, student = self._model, copy.deepcopy(self._model)
        with torch.inference_mode():
            first = [self._before(teacher, batch) for batch in batches]
            streams = [(hidden, hidden) for hidden, _ in first]
            for number, kept in enumerate(self._kept):
                ours, theirs = (model.encoder.layer[number] for model in (teacher, student))
                columns = torch.from_numpy(np.repeat(kept, output_of(ours).in_features // len(kept)))
                dense = output_of(theirs)
                gram, cross, after = 0.0, 0.0, []
                for (whole, left), (_, extra) in zip(streams, first, strict=True):
                    mask, positions, present = extra
                    output, _, next_whole = self._seen(ours, whole, mask, positions)
                    _, contexts, _ = self._seen(theirs, left, mask, positions)
                    features = torch.nn.functional.pad(contexts[present][:, columns], (0, 1), value=1.0)
                    gram = gram + (features.T @ features).double()
                    cross = cross + (features.T @ (whole + output - left)[present]).double()
                    after.append(next_whole)
                solved = torch.linalg.lstsq(gram, cross, driver="gelsd").solution.float()
                dense.weight.zero_()
                dense.weight[:, columns] = solved[:-1].T
                dense.bias.copy_(solved[-1])
                streams = [
                    (next_whole, self._seen(theirs, left, extra[0], extra[1])[2])
                    for next_whole, (_, left), (_, extra) in zip(after, streams, first, strict=True)
                ]
        return student

    def apart(self, student: Any, batches: Sequence[Batch]) -> float:
        """Return 1 - the mean cosine of mean-pooled vectors."""
        torch, cosines = self._torch, []
        with torch.inference_mode():
            for batch in batches:
                ids, mask = (
                    torch.from_numpy(np.asarray(batch[name])).long() for name in ("input_ids", "attention_mask")
                )
                one, other = (
                    (model(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None]).sum(1)
                    for model in (self._model, student)
                )
                cosines.append(torch.nn.functional.cosine_similarity(one, other))
        return 1.0 - float(torch.cat(cosines).mean())

    def _before(self, model: Any, batch: Batch) -> tuple[Any, tuple[Any, Any, Any]]:
        """Return the stream before the first layer, with the mask, the bias of positions, and which tokens count."""
        torch = self._torch
        ids, mask = (torch.from_numpy(np.asarray(batch[name])).long() for name in ("input_ids", "attention_mask"))
        hidden = model.embeddings(input_ids=ids)
        bias = getattr(model.encoder, "compute_position_bias", lambda _: None)(hidden)
        apart = torch.zeros(mask.shape).masked_fill(mask == 0, -1e9)[:, None, None, :]
        return hidden, (apart, bias, mask.bool())

    @staticmethod
    def _seen(layer: Any, hidden: Any, mask: Any, positions: Any) -> tuple[Any, Any, Any]:
        """Return the output of a layer's attention before the stream joins it, its contexts, and the layer's output."""
        seen: list[Any] = []
        hook = output_of(layer).register_forward_hook(lambda _, given, output: seen.extend((output, given[0])))
        result = layer(hidden, mask) if positions is None else layer(hidden, mask, positions)
        hook.remove()
        output, contexts = seen
        return output, contexts, result[0] if isinstance(result, tuple) else result


def output_of(layer: Any) -> Any:
    """Return the output projection of a layer's attention."""
    attention = layer.attention
    return attention.attn.o if hasattr(attention, "attn") else attention.output.dense
