"""Adapter for lm-evaluation-harness: `lm_eval --model headjax --model_args path=MODEL`.

Requires the extra `eval`. Versions of lm-eval with plugins find the adapter by its entry point; for those without,
`python -m headjax.evaluation.harness` takes the place of `lm_eval`. The numbers are those of lm-eval's backend `hf` on
the same weights: the tokenizer adds its own special tokens, a long context is cut on the left, and the rolling
log-likelihood of a text begins with the `bos_token` (`eos_token` without one) and predicts every token once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from headjax.core.errors import HeadjaxError
from headjax.models.decoder import DecoderConfig
from headjax.models.generation import begin, for_decoding
from headjax.models.model import Model, load
from headjax.models.prompts import tokenizer_of
from headjax.models.sampling import Greedy, Sample, Sampler
from headjax.nn.compute import Compute
from headjax.nn.passes import Pass

MAX_LENGTH = 2048
"""Greatest number of tokens of models whose positions have no limit, as lm-eval's own backends have it."""

BATCH_SIZE = 16
"""Number of requests of a batch where lm-eval leaves it open (`auto`)."""

MULTIPLE = 64
"""Batches are padded to multiples of this length, so that few programs serve all requests."""

CHUNK = 16
"""Number of tokens that are generated between two searches for the texts that end a continuation."""

Encoded = tuple[tuple[str, str] | None, list[int], list[int]]
"""A request with its context's and its continuation's tokens, as lm-eval hands them on."""


@register_model("headjax")
class HeadjaxLM(TemplateLM):
    """A decoder of headjax as a model of lm-eval."""

    def __init__(
        self,
        path: str,
        batch_size: int | str = BATCH_SIZE,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        dtype: str = "float32",
        device: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        model = load(path)
        if not isinstance(model.config, DecoderConfig) or model.config.task is not None:
            raise HeadjaxError(f"{path}: not a language model; lm-eval reads and continues text")
        self._path, self._tokenizer = path, tokenizer_of(model)
        self._compute = Compute(dtype=dtype)  # type: ignore[arg-type]
        self._model = for_decoding(model, self._compute)
        self._batch_size = BATCH_SIZE if str(batch_size).startswith("auto") else int(batch_size)
        self.max_length = int(max_length or model.config.max_length or MAX_LENGTH)
        self.max_gen_toks = int(max_gen_toks)

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, for lm-eval's cache of requests."""
        return self._path

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token."""
        return self._tokenizer.special_id("eos_token")

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context: the `bos_token`, or the `eos_token` without one."""
        roles = dict(self._tokenizer.special)
        return self._tokenizer.special_id("bos_token") if "bos_token" in roles else self.eot_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return a text's tokens, with those of the tokenizer's template unless the text begins with the first."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self._tokenizer.decode([self.prefix_token_id]))
        return self._tokenizer.prompt_ids(string, template=add_special_tokens)

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i][1]) - len(requests[i][2]))
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests")
        for some in self._batches(order):
            sums, right = self._score([(requests[i][1], requests[i][2]) for i in some])
            for row, i in enumerate(some):
                answers[i] = float(sums[row]), bool(right[row])
                if requests[i][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], answers[i])
            bar.update(len(some))
        bar.close()
        return answers

    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the log-likelihood of each continuation, and whether each of its tokens is the likeliest."""
        whole = [(context + continuation)[-self.max_length - 1 :] for context, continuation in pairs]
        longest = max(len(ids) - 1 for ids in whole)
        shape = (self._batch_size, min(-(-longest // MULTIPLE) * MULTIPLE, max(self.max_length, longest)))
        inputs, targets = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        wanted = np.zeros(shape, bool)
        for row, (ids, (_, continuation)) in enumerate(zip(whole, pairs, strict=True)):
            end = len(ids) - 1
            inputs[row, :end], targets[row, :end] = ids[:-1], ids[1:]
            wanted[row, max(0, end - len(continuation)) : end] = True
        found = _scores(self._model, self._compute, inputs, targets, wanted)
        sums, right = jax.device_get(found)
        return sums, right

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each text, predicted once token by token in windows of `max_length`."""
        windows: list[Encoded] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            cut = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
            found = [(None, *make_disjoint_window(window)) for window in cut]
            windows += found
            owners += [owner] * len(found)
        totals = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += value
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return a continuation of each context up to the first of its `until` texts."""
        answers = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(number)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests")
        for group in groups.values():
            wish = Wish.of(requests[group[0]].args[1], self.max_gen_toks)
            if wish.tokens >= self.max_length:
                raise HeadjaxError(f"max_gen_toks: {wish.tokens}, but the model reads {self.max_length} tokens in all")
            encoded = {i: self.tok_encode(requests[i].args[0]) or [self.prefix_token_id] for i in group}
            for some in self._batches(sorted(group, key=lambda i: -len(encoded[i]))):
                for i, text in zip(some, self._generate([encoded[i] for i in some], wish), strict=True):
                    answers[i] = text
                    self.cache_hook.add_partial("generate_until", requests[i].args, text)
                bar.update(len(some))
        bar.close()
        return answers

    def _generate(self, contexts: Sequence[list[int]], wish: Wish) -> list[str]:
        room = self.max_length - wish.tokens
        contexts = [context[-room:] for context in contexts]
        longest = max(map(len, contexts))
        length = min(-(-longest // MULTIPLE) * MULTIPLE, room)
        batch = {name: np.zeros((self._batch_size, length), np.int32) for name in ("input_ids", "attention_mask")}
        for row in range(self._batch_size):
            context = contexts[min(row, len(contexts) - 1)]
            batch["input_ids"][row, length - len(context) :] = context
            batch["attention_mask"][row, length - len(context) :] = 1
        run = begin(
            self._model,
            batch,
            max_new_tokens=wish.tokens,
            end_token=self.eot_token_id,
            sampler=wish.sampler,
            compute=self._compute,
        )
        while True:
            found = run.advance(CHUNK)
            texts = [self._text(found.tokens[row], int(found.lengths[row])) for row in range(len(contexts))]
            if run.finished or all(any(stop in text for stop in wish.until) for text in texts):
                return [wish.cut(text) for text in texts]

    def _text(self, tokens: Any, length: int) -> str:
        ids = [int(token) for token in np.asarray(tokens)[:length]]
        return str(self._tokenizer.backend.decode(ids, skip_special_tokens=True))

    def _batches(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        return (numbers[start : start + self._batch_size] for start in range(0, len(numbers), self._batch_size))


class Wish(NamedTuple):
    """The generation that a task asks for."""

    tokens: int
    until: tuple[str, ...]
    sampler: Sampler

    @classmethod
    def of(cls, given: Mapping[str, Any], tokens: int) -> Wish:
        """Read lm-eval's keyword arguments; `tokens` is the longest continuation where they do not say."""
        names = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
        longest = next((int(given[name]) for name in names if given.get(name) is not None), tokens)
        until = given.get("until") or ()
        stops = (until,) if isinstance(until, str) else tuple(until)
        temperature = float(given.get("temperature") or 0.0)
        if not given.get("do_sample", temperature > 0.0):
            return cls(longest, tuple(filter(None, stops)), Greedy())
        sampler = Sample(
            temperature=temperature or 1.0, top_k=int(given.get("top_k") or 0), top_p=float(given.get("top_p") or 1.0)
        )
        return cls(longest, tuple(filter(None, stops)), sampler)

    def cut(self, text: str) -> str:
        """Return the text before the first of the texts that end it."""
        for stop in self.until:
            text = text.split(stop, maxsplit=1)[0]
        return text


@functools.partial(jax.jit, static_argnums=1)
def _scores(
    model: Model, compute: Compute, inputs: jax.Array, targets: jax.Array, wanted: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return `[batch]` the summed log-likelihoods of the wanted targets, and whether all of them are the likeliest."""
    output = model.forward({"input_ids": inputs}, Pass(compute=compute))
    logits = output.require_logits().astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(logits, axis=-1)
    right = jnp.argmax(logits, axis=-1) == targets
    return jnp.where(wanted, chosen, 0.0).sum(axis=1), (right | ~wanted).all(axis=1)


if __name__ == "__main__":  # `lm_eval`, with this model registered
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
