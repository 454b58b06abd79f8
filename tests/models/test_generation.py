import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import headjax
from headjax.models.decoding import continue_until
from headjax.models.generation import begin, cache_bytes, check_room
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder_decoder import BATCH, CONFIGS, translation

PROMPTS = {
    "input_ids": np.array([[5, 6, 7, 8, 9], [11, 12, 13, 0, 0]]),
    "attention_mask": np.array([[1] * 5, [1, 1, 1, 0, 0]]),
}


NEW = 6
"""Tokens that most tests generate, so that they share programs."""

SOURCE = {name: BATCH[name] for name in ("input_ids", "attention_mask")}
ROTARY = tiny.multi_head(rotary=headjax.nn.RotaryHalves())
MODELS = {
    "learned": tiny.decoder_config(),
    "windows": tiny.decoder_config(window=(3, None)),
    "rotary": tiny.decoder_config(attention=(ROTARY, ROTARY), window=(3, None), positions="none", max_length=None),
    "translation": CONFIGS["translation"],
}


@pytest.fixture(scope="module")
def decoder():
    return tiny.model(MODELS["learned"])


@pytest.fixture(scope="module")
def free(decoder):
    return headjax.generate(decoder, PROMPTS, max_new_tokens=NEW)


def padded(numbers):
    return np.array([[*numbers, *[0] * (tiny.MAX_LENGTH - len(numbers))]])


def continued(model, tokens, places, **source):
    """Greedy continuation of one prompt by a whole forward per token, and its log probability."""
    side, total = "decoder_" if source else "", 0.0
    for _ in range(NEW):
        batch = source | {f"{side}input_ids": padded(tokens), f"{side}position_ids": padded(places)}
        log = jax.nn.log_softmax(model(batch).logits[0, len(tokens) - 1])
        tokens, places = [*tokens, int(jnp.argmax(log))], [*places, places[-1] + 1]
        total += float(log.max())
    return tokens[-NEW:], total


@pytest.mark.parametrize(("kind", "side"), [("learned", "right"), ("learned", "left"), ("windows", "right")])
def test_greedy_is_a_forward_per_token(kind, side):
    """Windows measure distances between tokens: the padding behind a prompt is not between them."""
    model, prompts = tiny.model(MODELS[kind]), PROMPTS
    if side == "left":
        prompts = {name: np.stack([array[0], np.roll(array[1], 2)]) for name, array in PROMPTS.items()}
    generated = headjax.generate(model, prompts, max_new_tokens=NEW)
    for row, prompt in enumerate(([5, 6, 7, 8, 9], [11, 12, 13])):
        tokens, total = continued(model, prompt, range(len(prompt)))
        np.testing.assert_array_equal(generated.tokens[row], tokens)
        assert_close(generated.log_probability[row], total, sums=tiny.SUMS)
    np.testing.assert_array_equal(generated.lengths, [NEW, NEW])


@pytest.mark.parametrize("kind", ["learned", "rotary", "translation"])
def test_a_batch_gives_positions_and_the_continuation_goes_on_from_the_last(kind):
    """Up to the last one that the model has; a window counts tokens, whatever positions they have."""
    model, places = tiny.model(MODELS[kind]), [0, 2, tiny.MAX_LENGTH - 1 - NEW]
    side = "decoder_" if kind == "translation" else ""
    source = {"input_ids": BATCH["input_ids"][:1]} if side else {}
    batch = source | {f"{side}input_ids": np.array([[5, 6, 7]]), f"{side}position_ids": np.array([places])}
    generated = headjax.generate(model, batch, max_new_tokens=NEW)
    np.testing.assert_array_equal(generated.tokens[0], continued(model, [5, 6, 7], places, **source)[0])


def test_translation_starts_from_the_start_token():
    model = tiny.model(MODELS["translation"])
    generated = headjax.generate(model, SOURCE, max_new_tokens=NEW)
    for row in range(2):
        source = {name: array[row : row + 1] for name, array in SOURCE.items()}
        np.testing.assert_array_equal(generated.tokens[row], continued(model, [3], [0], **source)[0])


def test_the_end_token_ends_one_example_and_not_the_other(decoder, free):
    tokens = np.asarray(free.tokens)
    end = next(token for token in tokens[0] if token not in tokens[1])
    first = int(np.argmax(tokens[0] == end))
    generated = headjax.generate(decoder, PROMPTS, max_new_tokens=NEW, end_token=int(end), padding_token=49)
    np.testing.assert_array_equal(generated.tokens[0], [*tokens[0][: first + 1], *[49] * (NEW - 1 - first)])
    np.testing.assert_array_equal(generated.tokens[1], tokens[1])
    np.testing.assert_array_equal(generated.lengths, [first + 1, NEW])


def test_a_generation_advances_in_steps_to_the_same_tokens(decoder, free):
    run = begin(decoder, PROMPTS, max_new_tokens=NEW)
    first, some, last = run.advance(1), run.advance(3), run.advance()
    for found, count in ((first, 1), (some, 3), (last, NEW)):
        np.testing.assert_array_equal(found.tokens[:, :count], free.tokens[:, :count])
        np.testing.assert_array_equal(found.lengths, [count, count])
    assert_close(last.log_probability, free.log_probability, sums=tiny.SUMS)


@pytest.mark.parametrize(("batch", "kv_heads"), [(2, 4), (1, 4), (1, 1)])
def test_no_token_copies_the_cache_or_the_weights(batch, kv_heads):
    """The loop's only large arrays are written in place, one prompt or one key head among them."""
    attention = tiny.grouped(4, kv_heads, 4)
    model = tiny.model(tiny.decoder_config(*[tiny.layer(attention)] * 2))
    run = begin(model, {"input_ids": np.ones((batch, 3), np.int32)}, max_new_tokens=9)
    compiled = continue_until.lower(run.settings, run.model, run.key, run.loop, 9).compile().as_text()
    cache = run.loop.cache.layers[0]["attention"]["key"]
    carried = ",".join(str(size) for size in cache.shape if size > 1)
    assert re.search(rf"f32\[{carried}\]\S* dynamic-update-slice\(", compiled)
    for shape in (carried, ",".join(map(str, cache.shape))):
        assert not re.findall(rf"f32\[{shape}\]\S* (copy|transpose)\(", compiled)


LOGITS = jnp.log(jnp.asarray([[0.1, 0.5, 0.15, 0.25], [0.4, 0.2, 0.3, 0.1]]))


@pytest.mark.parametrize(
    "sampler, expected",
    [
        (headjax.Sample(), [[0.1, 0.5, 0.15, 0.25], [0.4, 0.2, 0.3, 0.1]]),
        (headjax.Sample(top_k=2), [[0, 2 / 3, 0, 1 / 3], [4 / 7, 0, 3 / 7, 0]]),
        (headjax.Sample(top_p=0.7), [[0, 2 / 3, 0, 1 / 3], [4 / 7, 0, 3 / 7, 0]]),
        (headjax.Sample(top_p=0.3), [[0, 1, 0, 0], [1, 0, 0, 0]]),
        (headjax.Sample(top_k=3, top_p=0.75), [[0, 2 / 3, 0, 1 / 3], [4 / 7, 0, 3 / 7, 0]]),
        (headjax.Sample(temperature=0.5), [[0.01, 0.25, 0.0225, 0.0625], [0.16, 0.04, 0.09, 0.01]]),
    ],
)
def test_distributions_that_are_drawn_from(sampler, expected):
    np.testing.assert_array_equal(headjax.Greedy()(LOGITS, jax.random.key(0)), [1, 0])
    expected = np.asarray(expected) / np.sum(expected, axis=1, keepdims=True)
    keys = jax.random.split(jax.random.key(0), 2000)
    cut, drawn = jax.jit(lambda keys: (sampler.cut(LOGITS), jax.vmap(lambda key: sampler(LOGITS, key))(keys)))(keys)
    assert_close(jax.nn.softmax(cut), expected, sums=LOGITS.shape[-1])
    counts = np.stack([np.bincount(np.asarray(drawn[:, row]), minlength=4) for row in range(2)])
    np.testing.assert_allclose(counts / 2000, expected, atol=0.05)


@pytest.fixture(scope="module")
def writer():
    """A decoder with a tokenizer of bytes."""
    config = tiny.decoder_config(vocab_size=257, max_length=24)
    return tiny.model(config).replace(tokenizer=headjax.byte_tokenizer())


def test_a_text_is_continued_as_its_tokens_are(writer):
    ids = {"input_ids": np.array([list(b"ab")])}
    expected = np.asarray(headjax.generate(writer, ids, max_new_tokens=5, end_token=256).tokens)[0]
    expected = expected[: np.argmax(expected == 256)] if 256 in expected else expected
    text = headjax.generate(writer, "ab", max_new_tokens=5)
    assert text == writer.tokenizer.decode(expected)
    several = headjax.generate(writer, ["ab", "b", ""], max_new_tokens=5)
    assert several[0] == text
    assert several[1] == headjax.generate(writer, "b", max_new_tokens=5)
    assert len(several) == 3
    with pytest.raises(headjax.DataError, match=r"prompts: "):
        headjax.generate(writer, [], max_new_tokens=2)
    with pytest.raises(headjax.DataError, match="20 tokens and 8 new ones, but the model has 24 positions"):
        headjax.generate(writer, "a" * 20, max_new_tokens=8)
    drawn = [
        headjax.generate(writer, "ab", max_new_tokens=9, sampler=headjax.Sample(temperature=2.0), seed=seed)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_caches_that_cannot_fit_into_memory_are_refused(decoder, monkeypatch):
    model = decoder.unstacked()
    row = {name: array[:1] for name, array in PROMPTS.items()}
    # 2 layers, keys and values, 2 prompts of 5 + 4 tokens, 4 heads of 4 numbers of 4 bytes
    assert cache_bytes(decoder, PROMPTS, 4) == 2 * 2 * 2 * 9 * 4 * 4 * 4

    def room(field, texts, new_tokens):
        check_room(field, model, row, texts, new_tokens)

    monkeypatch.setenv("HEADJAX_MEMORY", "1M")
    room("--cache", 2, 7)
    with pytest.raises(headjax.ConfigError, match=r"^--cache: "):
        room("--cache", 2, 10**12)
    with pytest.raises(headjax.ConfigError, match=r"^--beams: "):
        room("--beams", 10_000, 7)
    with pytest.raises(headjax.DataError, match=r"^--cache: "):
        room("--cache", 1, 1000)


VOCABULARY, LONGEST, END = 4, 3, 1
SOURCES = {"input_ids": np.array([[2, 3, 1], [3, 3, 0]]), "attention_mask": np.array([[1, 1, 1], [1, 1, 0]])}


@pytest.fixture(scope="module")
def model():
    return tiny.model(translation(vocab_size=VOCABULARY, num_layers=1))


def every_hypothesis(model, penalty):
    """Score of every token sequence that ends, or is as long as allowed, for each source: by brute force."""
    sequences = [
        tokens
        for length in range(1, LONGEST + 1)
        for tokens in itertools.product(range(VOCABULARY), repeat=length)
        if END not in tokens[:-1] and (tokens[-1] == END or length == LONGEST)
    ]
    padded = np.array([[*tokens, *[0] * (LONGEST - len(tokens))] for tokens in sequences])
    scores = []
    for row in range(2):
        source = {name: np.repeat(array[row : row + 1], len(sequences), axis=0) for name, array in SOURCES.items()}
        inputs = np.concatenate([np.full((len(sequences), 1), 3), padded[:, :-1]], axis=1)
        log = np.asarray(jax.nn.log_softmax(model(source | {"decoder_input_ids": inputs}).logits, axis=-1))
        chosen = np.take_along_axis(log, padded[..., None], axis=-1)[..., 0]
        scores.append([chosen[i, : len(t)].sum() / len(t) ** penalty for i, t in enumerate(sequences)])
    return padded, np.array(scores)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_wide_beams_find_the_best_hypotheses_of_all(model, penalty):
    """With as many beams as there are unfinished hypotheses the search is exhaustive."""
    sequences, scores = every_hypothesis(model, penalty)
    found = headjax.beam_search(model, SOURCES, beams=20, max_new_tokens=LONGEST, end_token=END, length_penalty=penalty)
    for row in range(2):
        order = np.argsort(-scores[row])[:5]
        assert_close(found.scores[row, :5], scores[row][order], sums=tiny.SUMS)
        np.testing.assert_array_equal(found.tokens[row, :5], sequences[order])


def test_one_beam_is_greedy(model):
    """Unless greedy ends early, where the beam may find a longer hypothesis of a better mean."""
    greedy = headjax.generate(model, SOURCES, max_new_tokens=5)
    found = headjax.beam_search(model, SOURCES, beams=1, max_new_tokens=5, end_token=VOCABULARY)
    np.testing.assert_array_equal(found.tokens[:, 0], greedy.tokens)
    assert_close(found.scores[:, 0] * 5, greedy.log_probability, sums=tiny.SUMS)
