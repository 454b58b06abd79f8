"""`headjax generate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headjax.commands.options import MODEL, BatchOptions, argument, option
from headjax.commands.outputs import CommandResult, key
from headjax.core import numbers
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, NotNegative, Size
from headjax.core.progress import Progress
from headjax.report.tables import Column, Table
from headjax.storage.paths import path_of

if TYPE_CHECKING:
    from headjax.models.config import Batch
    from headjax.models.decoding import Sampler


class Options(BatchOptions):
    model: str = argument("MODEL", f"{MODEL}, of a decoder or an encoder-decoder", reads="model")
    prompt: tuple[str, ...] = option(
        (), "text to continue, or source to translate; can be repeated", "TEXT", words="repeated"
    )
    file: str = option("", "file with a prompt on each line, instead of --prompt", "FILE", reads="file")
    max_new_tokens: Size | None = option(None, "longest continuation (default: 64, or as the positions allow)")
    temperature: NotNegative | None = option(
        None, "sampling temperature; 0 is greedy decoding (default: 0; 1 with --top-k or --top-p)", "T"
    )
    top_k: Count = option(0, "top-k sampling: from the N most probable tokens; 0 is all", shown="0")
    top_p: float = option(1.0, "nucleus sampling: from the smallest set of tokens with total probability P", "P")
    seed: Count = option(0, "seed of sampling", shown="0")


class Result(CommandResult):
    text: Sequence[str] = key("by prompt")
    prompts: Sequence[str] = key()
    tokens: int = key("generated")
    seconds: float = key("after compilation")
    tokens_per_second: float = key()

    def tables(self) -> Sequence[Table]:
        speed = f"{numbers.count(self.tokens_per_second)} tokens per second"
        note = f"{self.tokens:,} tokens in {numbers.duration(self.seconds)} after compilation: {speed}."
        rows = list(zip(self.prompts, self.text, strict=True))
        return [Table((Column("Prompt"), Column("Generated")), rows, notes=[note])]


def run(options: Options, progress: Progress) -> Result:
    """Continue prompts or translate sources, and time it."""
    import jax
    import numpy as np

    from headjax.hub.either import read_model
    from headjax.models import generation
    from headjax.storage.files import read_lines

    if bool(options.prompt) == bool(options.file):
        raise HeadjaxError("--prompt: give a text, or --file with a prompt on each line, one of them")
    if options.prompt and "" in options.prompt:
        raise HeadjaxError("--prompt: it is empty, there is no text to continue")
    sampler, prompts = _sampler(options), list(options.prompt)
    if options.file:
        lines = read_lines(path_of(options.file).expanduser())
        prompts = [line.rstrip("\n") for line in lines if line.strip()]
    model = read_model(options.model)
    config = generation.check_generative(model.config, options.max_new_tokens or 1)
    batch = generation.prompt_batch(model, prompts, special=True)
    limit = options.max_new_tokens or generation.new_tokens(config, batch)
    size = min(options.batch_size, len(prompts))
    model, end = model.unstacked(), generation.end_of_text(generation.tokenizer_of(model))
    generation.check_room("--max-new-tokens", model, {name: array[:1] for name, array in batch.items()}, size, limit)

    def begun(number: int) -> tuple[Batch, generation.Generation]:
        """Return a batch by its number, the last prompt repeated to fill it, and its generation after first tokens."""
        chosen = np.minimum(np.arange(number * size, (number + 1) * size), len(prompts) - 1)
        rows = {name: array[chosen] for name, array in batch.items()}
        seed = options.seed + number
        return rows, generation.begin(model, rows, max_new_tokens=limit, end_token=end, sampler=sampler, seed=seed)

    begun(0)[1].advance(1)  # compiles both programs before the clock runs
    texts: list[str] = []
    tokens, seconds = 0, 0.0
    with progress("generating", len(prompts), "prompt") as bar:
        for number in range(-(-len(prompts) // size)):
            started = time.perf_counter()
            rows, ongoing = begun(number)
            made = jax.device_get(ongoing.advance())
            seconds += time.perf_counter() - started
            count = min(size, len(prompts) - len(texts))
            texts += generation.texts_of(model, rows, made.tokens, made.lengths, end, count)
            tokens += int(made.lengths[:count].sum())
            bar(len(texts), {})
    return Result(text=texts, prompts=prompts, tokens=tokens, seconds=seconds, tokens_per_second=tokens / seconds)


def _sampler(options: Options) -> Sampler:
    from headjax.models.decoding import Greedy, Sample

    draws = options.temperature is not None or options.top_k > 0 or options.top_p < 1.0
    if not 0.0 < options.top_p <= 1.0:
        raise HeadjaxError(f"--top-p: must be above 0 and at most 1, got {options.top_p}")
    if not draws or options.temperature == 0:
        return Greedy()
    temperature = 1.0 if options.temperature is None else options.temperature
    return Sample(temperature=temperature, top_k=options.top_k, top_p=options.top_p)
