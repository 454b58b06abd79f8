"""`headjax generate`."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.examples import BatchOptions
from headjax.commands.options import Result, argument, option
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, NotNegative, Size
from headjax.core.progress import Progress, Update
from headjax.report.tables import Column, Table

if TYPE_CHECKING:
    from headjax.models.config import Batch
    from headjax.models.generation import Sampler
    from headjax.models.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(BatchOptions):
    """Options of `headjax generate`."""

    model: str = argument("MODEL", "model directory of a decoder or an encoder-decoder")
    prompt: tuple[str, ...] = option(
        (), "text to continue, or source to translate; can be repeated", "TEXT", words="repeated"
    )
    file: str = option("", "file with a prompt on each line, instead of --prompt", "FILE")
    max_new_tokens: Size | None = option(None, "longest continuation (default: 64, or as the positions allow)")
    temperature: NotNegative | None = option(
        None, "draw from softmax(logits / T); 0 takes the likeliest token (default: 0; 1 with --top-k or --top-p)", "T"
    )
    top_k: Count = option(0, "draw from the N likeliest tokens; 0 is all", shown="0")
    top_p: float = option(1.0, "draw from the likeliest tokens whose probabilities sum to P", "P")
    beams: Count = option(0, "search with N hypotheses instead of drawing; 0 is no search", shown="0")
    seed: Count = option(0, "seed of the draws", shown="0")


class Written(NamedTuple):
    """Generated texts.

    Attributes:
        texts: the continuations or translations.
        tokens: number of tokens generated, end tokens included.
    """

    texts: list[str]
    tokens: int


def run(options: Options, progress: Progress) -> Result:
    """Continue prompts or translate sources, and time it."""
    from headjax.models.generation import check_generative
    from headjax.models.model import load

    sampler = sampler_of(options)
    prompts = prompts_of(options)
    model = load(options.model)
    check_generative(model.config, options.max_new_tokens or 1, None)
    with progress("generating", len(prompts), "prompt") as bar:
        written, seconds = _write(model, prompts, sampler, options, bar)
    rate = written.tokens / seconds
    data: dict[str, Any] = {
        "text": written.texts,
        "prompts": prompts,
        "tokens": written.tokens,
        "seconds": seconds,
        "tokens_per_second": rate,
        "sampler": f"beams {options.beams}" if options.beams else str(sampler),
        "model": options.model,
    }
    rows = list(zip(prompts, written.texts, strict=True))
    note = f"{written.tokens:,} tokens in {seconds:.3g} s after compilation: {rate:.3g} tokens per second."
    return Result(data, [Table((Column("Prompt"), Column("Generated")), rows, notes=(note,))])


def prompts_of(options: Options) -> list[str]:
    """Return the prompts that the options name.

    Raises:
        HeadjaxError: no prompt is given, or both a file and prompts are.
        DataError: a file that cannot be read.
    """
    from pathlib import Path

    from headjax.data.files import read_lines

    if bool(options.prompt) == bool(options.file):
        raise HeadjaxError("--prompt: give a text, or --file with a prompt on each line, one of them")
    if options.prompt:
        return list(options.prompt)
    return [line.rstrip("\n") for line in read_lines(Path(options.file).expanduser()) if line.strip()]


def sampler_of(options: Options) -> Sampler:
    """Return the sampler that the options ask for.

    Raises:
        HeadjaxError: options that exclude each other, or a value out of bounds.
    """
    from headjax.models.generation import Greedy, Sample

    draws = options.temperature is not None or options.top_k > 0 or options.top_p < 1.0
    if options.beams and draws:
        raise HeadjaxError("--beams: beam search does not draw; leave out --temperature, --top-k and --top-p")
    if not 0.0 < options.top_p <= 1.0:
        raise HeadjaxError(f"--top-p: must be above 0 and at most 1, got {options.top_p}")
    if not draws or options.temperature == 0:
        return Greedy()
    temperature = 1.0 if options.temperature is None else options.temperature
    return Sample(temperature=temperature, top_k=options.top_k, top_p=options.top_p)


def _write(model: Model, prompts: list[str], sampler: Sampler, options: Options, bar: Update) -> tuple[Written, float]:
    """Return the texts, and the seconds that they took after compilation."""
    from headjax.models.prompts import new_tokens, prompt_batch

    # Prompts of all batches have one shape, so that one compilation serves them.
    whole = prompt_batch(model, prompts)
    limit = options.max_new_tokens or new_tokens(model.config, whole)
    size = min(options.batch_size, len(prompts))
    batches = []
    for start in range(0, len(prompts), size):
        rows = [min(row, len(prompts) - 1) for row in range(start, start + size)]
        batches.append(({name: array[rows] for name, array in whole.items()}, min(size, len(prompts) - start)))
    _batch(model, *batches[0], limit, sampler, options, options.seed)
    texts: list[str] = []
    tokens, begin = 0, time.perf_counter()
    for number, (batch, count) in enumerate(batches):
        written = _batch(model, batch, count, limit, sampler, options, options.seed + number)
        texts, tokens = texts + written.texts, tokens + written.tokens
        bar(len(texts), {})
    return Written(texts, tokens), time.perf_counter() - begin


def _batch(
    model: Model, batch: Batch, count: int, limit: int, sampler: Sampler, options: Options, seed: int
) -> Written:
    """Return the texts of the first `count` rows of a batch."""
    import numpy as np

    from headjax.models.beam import beam_search
    from headjax.models.generation import generate
    from headjax.models.prompts import end_of_text, texts_of, tokenizer_of

    end = end_of_text(tokenizer_of(model))
    if options.beams:
        if end is None:
            raise HeadjaxError("--beams: the tokenizer has no end-of-text token, which beam search needs")
        best = beam_search(model, batch, beams=options.beams, max_new_tokens=limit, end_token=end)
        tokens, lengths = np.asarray(best.tokens)[:, 0], np.asarray(best.lengths)[:, 0]
    else:
        found = generate(model, batch, max_new_tokens=limit, end_token=end, sampler=sampler, seed=seed)
        tokens, lengths = np.asarray(found.tokens), np.asarray(found.lengths)
    return Written(texts_of(model, batch, tokens, lengths, end, count), int(lengths[:count].sum()))
