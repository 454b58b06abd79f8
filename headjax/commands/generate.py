"""`headjax generate`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headjax.commands.examples import MODEL, BatchOptions
from headjax.commands.options import argument, option
from headjax.commands.results import Result, found
from headjax.core.errors import HeadjaxError
from headjax.core.fields import Count, NotNegative, Size
from headjax.core.progress import Progress, Update
from headjax.core.terminal import printable
from headjax.report import numbers
from headjax.report.tables import Column, Table
from headjax.storage.paths import path_of

if TYPE_CHECKING:
    from headjax.models.config import Batch
    from headjax.models.generation import Generation
    from headjax.models.model import Model
    from headjax.models.sampling import Sampler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(BatchOptions):
    """Options of `headjax generate`."""

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
    beams: Count = option(0, "beam search with beam size N; 0 is sampling or greedy decoding", shown="0")
    seed: Count = option(0, "seed of sampling", shown="0")
    stream: bool = option(False, "print tokens as they are generated, one prompt after another")


class Written(NamedTuple):
    """Texts of a batch, the number of their tokens, end tokens included, and their seconds after compilation."""

    texts: list[str]
    tokens: int
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found(Result):
    """Generated texts."""

    text: Sequence[str] = found("by prompt")
    prompts: Sequence[str] = found()
    tokens: int = found("generated")
    seconds: float = found("after compilation")
    tokens_per_second: float = found()
    streamed: bool

    def tables(self) -> Sequence[Table]:
        if self.streamed:
            return []
        rows = list(zip(self.prompts, self.text, strict=True))
        return [Table((Column("Prompt"), Column("Generated")), rows, notes=[self._note()])]

    def message(self) -> str:
        return self._note() if self.streamed else ""

    def _note(self) -> str:
        speed = f"{numbers.count(self.tokens_per_second)} tokens per second"
        return f"{self.tokens:,} tokens in {numbers.duration(self.seconds)} after compilation: {speed}."


def run(options: Options, progress: Progress) -> Found:
    """Continue prompts or translate sources, and time it."""
    from headjax.hub.either import read_model
    from headjax.models.generation import check_generative

    sampler, prompts = sampler_of(options), prompts_of(options)
    model = read_model(options.model)
    check_generative(model.config, options.max_new_tokens or 1)
    request = _request(model, prompts, sampler, options)
    if options.stream:
        parts = [_streamed(request, number, prompt) for number, prompt in enumerate(prompts)]
    else:
        with progress("generating", len(prompts), "prompt") as bar:
            parts = list(_batches(request, len(prompts), bar))
    tokens, seconds = sum(part.tokens for part in parts), sum(part.seconds for part in parts)
    return Found(
        text=[text for part in parts for text in part.texts],
        prompts=prompts,
        tokens=tokens,
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        streamed=options.stream,
    )


def prompts_of(options: Options) -> list[str]:
    """Return the prompts that the options name."""
    from headjax.storage.files import read_lines

    if bool(options.prompt) == bool(options.file):
        raise HeadjaxError("--prompt: give a text, or --file with a prompt on each line, one of them")
    if options.prompt:
        if "" in options.prompt:
            raise HeadjaxError("--prompt: it is empty, there is no text to continue")
        return list(options.prompt)
    return [line.rstrip("\n") for line in read_lines(path_of(options.file).expanduser()) if line.strip()]


def sampler_of(options: Options) -> Sampler:
    """Return the sampler that the options ask for."""
    from headjax.models.sampling import Greedy, Sample

    draws = options.temperature is not None or options.top_k > 0 or options.top_p < 1.0
    if options.beams and draws:
        raise HeadjaxError("--beams: beam search does not draw; leave out --temperature, --top-k and --top-p")
    if options.beams and options.stream:
        raise HeadjaxError("--stream: beams are compared until the end; leave out --beams")
    if not 0.0 < options.top_p <= 1.0:
        raise HeadjaxError(f"--top-p: must be above 0 and at most 1, got {options.top_p}")
    if not draws or options.temperature == 0:
        return Greedy()
    temperature = 1.0 if options.temperature is None else options.temperature
    return Sample(temperature=temperature, top_k=options.top_k, top_p=options.top_p)


class _Request(NamedTuple):
    """Settings of a generation."""

    model: Model
    batch: Batch
    size: int
    limit: int
    end: int | None
    sampler: Sampler
    options: Options

    def rows(self, start: int) -> Batch:
        """Return a batch of the prompts from a number on, the last one repeated to fill it."""
        last = len(self.batch["input_ids"]) - 1
        rows = [min(row, last) for row in range(start, start + self.size)]
        return {name: array[rows] for name, array in self.batch.items()}

    def begin(self, batch: Batch, seed: int) -> Generation:
        """Return the generation of a batch after its first tokens."""
        from headjax.models.generation import begin

        return begin(
            self.model,
            batch,
            max_new_tokens=self.limit,
            end_token=self.end,
            sampler=self.sampler,
            seed=self.options.seed + seed,
        )

    def texts(self, batch: Batch, tokens: Any, lengths: Any, count: int) -> list[str]:
        """Return the first generated texts of a batch."""
        import numpy as np

        from headjax.models.prompts import texts_of

        return texts_of(self.model, batch, np.asarray(tokens), np.asarray(lengths), self.end, count)


def _request(model: Model, prompts: list[str], sampler: Sampler, options: Options) -> _Request:
    """Return the settings of the prompts' generation, which is compiled before any clock runs."""
    from headjax.models.generation import check_generative, check_room, for_decoding
    from headjax.models.prompts import end_of_text, new_tokens, prompt_batch, tokenizer_of

    config = check_generative(model.config, 1)
    batch = prompt_batch(model, prompts, special=True)
    limit = options.max_new_tokens or new_tokens(config, batch)
    size = 1 if options.stream else min(options.batch_size, len(prompts))
    model = for_decoding(model)
    end = end_of_text(tokenizer_of(model))
    if options.beams and end is None:
        raise HeadjaxError("--beams: the tokenizer has no end-of-text token, which beam search needs")
    rows = {name: array[:1] for name, array in batch.items()}
    check_room("--max-new-tokens", model, rows, size, limit)
    if options.beams:
        check_room("--beams", model, rows, size * options.beams, limit)
    request = _Request(model, batch, size, limit, end, sampler, options)
    if options.beams:
        _beams(request, 0, size)
    else:
        request.begin(request.rows(0), 0).advance(0)
    return request


def _batches(request: _Request, prompts: int, bar: Update) -> Iterator[Written]:
    """Yield the texts of every batch."""
    for number, start in enumerate(range(0, prompts, request.size)):
        count = min(request.size, prompts - start)
        yield _beams(request, start, count) if request.options.beams else _batch(request, start, count, number)
        bar(start + count, {})


def _batch(request: _Request, start: int, count: int, seed: int, show: Callable[[str], None] | None = None) -> Written:
    """Return the texts of the `count` prompts from `start` on; `show` gets the first one's text as it grows."""
    import jax

    batch = request.rows(start)
    begin = time.perf_counter()
    run = request.begin(batch, seed)
    made = run.advance(None if show is None else 0)
    while show is not None and not run.finished:
        show(request.texts(batch, made.tokens, made.lengths, 1)[0])
        made = run.advance(1)
    jax.block_until_ready(made)
    seconds = time.perf_counter() - begin
    texts = request.texts(batch, made.tokens, made.lengths, count)
    return Written(texts, int(made.lengths[:count].sum()), seconds)


def _beams(request: _Request, start: int, count: int) -> Written:
    """Return the best sequences of the `count` prompts from `start` on."""
    import numpy as np

    from headjax.models.generation import beam_search

    batch, beams, end = request.rows(start), request.options.beams, request.end or 0
    begin = time.perf_counter()
    best = beam_search(request.model, batch, beams=beams, max_new_tokens=request.limit, end_token=end)
    tokens, lengths = np.asarray(best.tokens)[:, 0], np.asarray(best.lengths)[:, 0]
    seconds = time.perf_counter() - begin
    return Written(request.texts(batch, tokens, lengths, count), int(lengths[:count].sum()), seconds)


def _streamed(request: _Request, number: int, prompt: str) -> Written:
    """Print the text of a prompt token by token, and return it."""
    from headjax.models.encoder_decoder import EncoderDecoderConfig

    print("" if isinstance(request.model.config, EncoderDecoderConfig) else printable(prompt), end="", flush=True)
    shown = _Shown()
    written = _batch(request, number, 1, number, shown)
    shown(written.texts[-1], last=True)
    print(flush=True)
    return written


class _Shown:
    """Prints a growing text, the new part each time."""

    def __init__(self) -> None:
        self._length = 0

    def __call__(self, text: str, last: bool = False) -> None:
        # The last characters may be bytes of a character whose rest is still to come.
        text = text if last else text.rstrip("\ufffd")
        print(printable(text[self._length :]), end="", flush=True)
        self._length = max(self._length, len(text))
