from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headjax.attention import Grouped
from headjax.attention.rotary import RotaryHalves
from headjax.core import tensors
from headjax.core.errors import ConfigError, DataError
from headjax.models.embeddings import Embeddings, Learned, NoPositions
from headjax.models.generation import (
    Greedy,
    Sample,
    _continue,
    begin,
    cache_bytes,
    check_room,
    for_decoding,
    generate,
    programs,
)
from headjax.tokenizers.learned import byte_tokenizer
from tests import tiny
from tests.closeness import assert_close
from tests.models.test_encoder import config as encoder_config
from tests.models.test_encoder_decoder import BATCH, CONFIGS

PROMPTS = {
    "input_ids": np.array([[5, 6, 7, 8, 9], [11, 12, 13, 0, 0]]),
    "attention_mask": np.array([[1] * 5, [1, 1, 1, 0, 0]]),
}


@pytest.fixture(scope="module")
def decoder():
    return tiny.model(tiny.decoder_config())


@pytest.fixture(scope="module")
def translator():
    return tiny.model(CONFIGS["translation"])


def continued(model, tokens, count):
    """Greedy continuation of one prompt by a whole forward per token."""
    total = 0.0
    for _ in range(count):
        padded = np.array([[*tokens, *[0] * (tiny.MAX_LENGTH - len(tokens))]])
        log = jax.nn.log_softmax(model({"input_ids": padded}).logits[0, len(tokens) - 1])
        tokens = [*tokens, int(jnp.argmax(log))]
        total += float(log.max())
    return tokens[-count:], total


@pytest.mark.parametrize("window", [None, 3])
def test_greedy_is_a_forward_per_token(decoder, window):
    """Windows measure distances between tokens: the padding behind a prompt is not between them."""
    layers = (tiny.layer(window=window), tiny.layer())
    model = decoder if window is None else tiny.model(tiny.decoder_config(*layers))
    generated = generate(model, PROMPTS, max_new_tokens=4)
    for row, prompt in enumerate(([5, 6, 7, 8, 9], [11, 12, 13])):
        tokens, total = continued(model, prompt, 4)
        np.testing.assert_array_equal(generated.tokens[row], tokens)
        assert_close(generated.log_probability[row], total, sums=tiny.SUMS)
    np.testing.assert_array_equal(generated.lengths, [4, 4])


ROTARY = {"embeddings": Embeddings(vocab_size=tiny.VOCABULARY, positions=NoPositions())}


@pytest.mark.parametrize("kind", ["learned", "rotary", "translation"])
def test_a_batch_gives_positions_and_the_continuation_goes_on_from_the_last(kind, decoder, translator):
    attention = tiny.multi_head(rotary=RotaryHalves())
    # A window counts tokens, whatever positions they have.
    layers = (tiny.layer(attention, window=3), tiny.layer(attention))
    models = {"learned": decoder, "translation": translator}
    model = models[kind] if kind in models else tiny.model(tiny.decoder_config(*layers, **ROTARY))
    side = "decoder_" if kind == "translation" else ""
    batch = {f"{side}input_ids": np.array([[5, 6, 7]]), f"{side}position_ids": np.array([[0, 2, 5]])}
    batch |= {"input_ids": BATCH["input_ids"][:1]} if side else {}
    generated = generate(model, batch, max_new_tokens=3)
    for _ in range(3):
        token = np.argmax(model(batch).logits[:, -1:], axis=-1)
        batch[f"{side}input_ids"] = np.concatenate([batch[f"{side}input_ids"], token], axis=1)
        after = batch[f"{side}position_ids"][:, -1:] + 1
        batch[f"{side}position_ids"] = np.concatenate([batch[f"{side}position_ids"], after], axis=1)
    np.testing.assert_array_equal(generated.tokens, batch[f"{side}input_ids"][:, 3:])


def test_given_positions_leave_room_for_the_continuation(decoder):
    batch = {"input_ids": np.array([[5, 6, 7]]), "position_ids": np.array([[0, 2, tiny.MAX_LENGTH - 3]])}
    generate(decoder, batch, max_new_tokens=2)
    with pytest.raises(DataError, match="position_ids"):
        generate(decoder, batch, max_new_tokens=3)


def test_the_end_token_ends_one_example_and_not_the_other(decoder):
    free = np.asarray(generate(decoder, PROMPTS, max_new_tokens=6).tokens)
    end = next(token for token in free[0] if token not in free[1])
    first = int(np.argmax(free[0] == end))
    generated = generate(decoder, PROMPTS, max_new_tokens=6, end_token=int(end), padding_token=49)
    np.testing.assert_array_equal(generated.tokens[0], [*free[0][: first + 1], *[49] * (5 - first)])
    np.testing.assert_array_equal(generated.tokens[1], free[1])
    np.testing.assert_array_equal(generated.lengths, [first + 1, 6])


def test_translation_starts_from_the_start_token(translator):
    source = {name: BATCH[name] for name in ("input_ids", "attention_mask")}
    generated = np.asarray(generate(translator, source, max_new_tokens=4).tokens)
    inputs = np.concatenate([np.full((2, 1), 3), generated[:, :3]], axis=1)
    logits = translator(source | {"decoder_input_ids": inputs}).logits
    np.testing.assert_array_equal(generated, np.argmax(logits, axis=-1))


def test_a_generation_advances_in_steps_to_the_same_tokens(decoder):
    whole = generate(decoder, PROMPTS, max_new_tokens=5, cache=11)
    np.testing.assert_array_equal(whole.tokens, generate(decoder, PROMPTS, max_new_tokens=5).tokens)
    run = begin(decoder, PROMPTS, max_new_tokens=5)
    first, some = run.advance(0), run.advance(2)
    assert (run.step, run.finished) == (3, False)
    last = run.advance()
    assert run.finished
    for found, count in ((first, 1), (some, 3), (last, 5)):
        np.testing.assert_array_equal(found.tokens[:, :count], whole.tokens[:, :count])
        np.testing.assert_array_equal(found.lengths, [count, count])
    assert_close(last.log_probability, whole.log_probability, sums=tiny.SUMS)
    with pytest.raises(DataError, match=r"cache: "):
        generate(decoder, PROMPTS, max_new_tokens=5, cache=9)


@pytest.mark.parametrize(("batch", "kv_heads"), [(2, 4), (1, 4), (1, 1)])
def test_no_token_copies_the_cache_or_the_weights(batch, kv_heads):
    """The loop's only large arrays are written in place, one prompt or one key head among them."""
    attention = Grouped(num_heads=4, kv_heads=kv_heads, head_dim=4)
    model = tiny.model(tiny.decoder_config(*[tiny.layer(attention)] * 2))
    run = begin(model, {"input_ids": np.ones((batch, 3), np.int32)}, max_new_tokens=9)
    arguments = (run._settings, run._params, run._gates, run._key, run._loop, 9)
    compiled = _continue.lower(*arguments).compile().as_text()
    cache = run._loop.state.cache.layers["layers_0_1"][0].attention["key"]
    carried = ",".join(str(size) for size in cache.shape if size > 1)
    assert re.search(rf"f32\[{carried}\]\S* dynamic-update-slice\(", compiled)
    for shape in (carried, ",".join(map(str, cache.shape))):
        assert not re.findall(rf"f32\[{shape}\]\S* (copy|transpose)\(", compiled)


def test_a_scanned_stack_generates_the_same(decoder, monkeypatch):
    expected = generate(decoder, PROMPTS, max_new_tokens=4)
    monkeypatch.setattr("headjax.models.generation.UNROLLED", 0)
    np.testing.assert_array_equal(generate(decoder, PROMPTS, max_new_tokens=4).tokens, expected.tokens)


def test_cache_bytes_are_those_of_keys_and_values(decoder):
    # 2 layers, keys and values, 2 prompts of 5 + 4 tokens, 4 heads of 4 numbers of 4 bytes
    assert cache_bytes(decoder.config, decoder.params, PROMPTS, 4) == 2 * 2 * 2 * 9 * 4 * 4 * 4


def test_gates_change_what_is_generated(decoder):
    gates = {"decoder": jnp.zeros((2, 4))}
    gated = generate(decoder, PROMPTS, max_new_tokens=4, gates=gates)
    assert not np.array_equal(gated.tokens, generate(decoder, PROMPTS, max_new_tokens=4).tokens)
    with pytest.raises(DataError, match=r"gates: "):
        generate(decoder, PROMPTS, max_new_tokens=4, gates={"decoder": jnp.zeros((2, 2, 4))})


def test_sampling_repeats_with_its_seed(decoder):
    sampler = Sample(temperature=2.0, top_k=20)
    first, again, other = (generate(decoder, PROMPTS, max_new_tokens=6, sampler=sampler, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)


LOGITS = jnp.log(jnp.asarray([[0.1, 0.5, 0.15, 0.25], [0.4, 0.2, 0.3, 0.1]]))


@pytest.mark.parametrize(
    "sampler, expected",
    [
        (Sample(), [[0.1, 0.5, 0.15, 0.25], [0.4, 0.2, 0.3, 0.1]]),
        (Sample(top_k=2), [[0, 2 / 3, 0, 1 / 3], [4 / 7, 0, 3 / 7, 0]]),
        (Sample(top_p=0.7), [[0, 2 / 3, 0, 1 / 3], [4 / 7, 0, 3 / 7, 0]]),
        (Sample(top_p=0.3), [[0, 1, 0, 0], [1, 0, 0, 0]]),
        (Sample(top_k=3, top_p=0.75), [[0, 2 / 3, 0, 1 / 3], [4 / 7, 0, 3 / 7, 0]]),
        (Sample(temperature=0.5), [[0.01, 0.25, 0.0225, 0.0625], [0.16, 0.04, 0.09, 0.01]]),
    ],
)
def test_distributions_that_are_drawn_from(sampler, expected):
    expected = np.asarray(expected) / np.sum(expected, axis=1, keepdims=True)
    assert_close(jax.nn.softmax(sampler.cut(LOGITS)), expected, sums=LOGITS.shape[-1])
    key = jax.random.key(0)
    drawn = jax.vmap(lambda i: sampler(LOGITS, jax.random.fold_in(key, i)))(jnp.arange(2000))
    counts = np.stack([np.bincount(np.asarray(drawn[:, row]), minlength=4) for row in range(2)])
    np.testing.assert_allclose(counts / 2000, expected, atol=0.05)


def test_greedy_takes_the_likeliest():
    np.testing.assert_array_equal(Greedy()(LOGITS, jax.random.key(0)), [1, 0])


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_impossible_samplers_are_refused(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        Sample(**fields)


@pytest.fixture(scope="module")
def writer():
    """A decoder with a tokenizer of bytes."""
    config = tiny.decoder_config(embeddings=Embeddings(vocab_size=257, positions=Learned(24)))
    return tiny.model(config).replace(tokenizer=byte_tokenizer())


def test_a_text_is_continued_as_its_tokens_are(writer):
    ids = {"input_ids": np.array([list(b"ab")])}
    expected = np.asarray(generate(writer, ids, max_new_tokens=5, end_token=256).tokens)[0]
    expected = expected[: np.argmax(expected == 256)] if 256 in expected else expected
    text = generate(writer, "ab", max_new_tokens=5)
    assert text == writer.tokenizer.decode(expected)
    several = generate(writer, ["ab", "b", ""], max_new_tokens=5)
    assert several[0] == text
    assert several[1] == generate(writer, "b", max_new_tokens=5)
    assert len(several) == 3
    drawn = [generate(writer, "ab", max_new_tokens=9, sampler=Sample(temperature=2.0), seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_texts_need_a_tokenizer_and_positions(writer, decoder):
    with pytest.raises(DataError, match=r"model: "):
        generate(decoder, "ab", max_new_tokens=2)
    with pytest.raises(DataError, match=r"prompts: "):
        generate(writer, [], max_new_tokens=2)
    with pytest.raises(DataError, match="24 learned positions"):
        generate(writer, "a" * 20, max_new_tokens=8)


def test_what_cannot_generate_says_so(decoder):
    encoder = tiny.model(encoder_config(num_layers=1))
    with pytest.raises(DataError, match=r"model: "):
        generate(encoder, PROMPTS, max_new_tokens=1)
    with pytest.raises(DataError, match=r"max_new_tokens: "):
        generate(decoder, PROMPTS, max_new_tokens=0)
    with pytest.raises(DataError, match=r"input_ids: "):
        generate(decoder, PROMPTS, max_new_tokens=8)


def test_texts_that_cannot_fit_into_memory(decoder, monkeypatch):
    params = for_decoding(decoder.config, decoder.params)
    row = {name: array[:1] for name, array in PROMPTS.items()}

    def room(field, texts, new_tokens):
        return check_room(field, decoder.config, params, row, texts, new_tokens)

    monkeypatch.setenv("HEADJAX_MEMORY", "1M")
    assert room("--cache", 2, 7) == 2 * cache_bytes(decoder.config, params, row, 7)
    with pytest.raises(ConfigError, match=r"^--cache: "):
        room("--cache", 2, 10**12)
    with pytest.raises(ConfigError, match=r"^--beams: "):
        room("--beams", 10_000, 7)
    with pytest.raises(DataError, match=r"^--cache: "):
        room("--cache", 1, 1000)


def test_compiled_programs_tell_the_memory_of_weights_and_cache(decoder):
    short, long = (programs(decoder, PROMPTS, max_new_tokens=tokens) for tokens in (2, 6))
    weights = 4 * tensors.count(decoder.config.tensors())
    cache = cache_bytes(decoder.config, decoder.params, PROMPTS, 6)
    assert long.prompt.memory_analysis().argument_size_in_bytes >= weights
    assert long.continuation.memory_analysis().argument_size_in_bytes >= weights + cache
    held = [made.continuation.memory_analysis().argument_size_in_bytes for made in (short, long)]
    assert held[1] > held[0]
    with pytest.raises(DataError, match=r"^max_new_tokens: "):
        programs(decoder, PROMPTS, max_new_tokens=0)
