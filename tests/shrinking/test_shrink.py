"""Shrinking to a budget: costs are exact, damages those of the model, choices the best, and built as chosen."""

import dataclasses
import importlib.util
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

import headjax
from headjax.conversion.calibration import collect
from headjax.core.progress import silent
from headjax.heads.agreement import Sensitivity, agreement
from headjax.heads.batches import held_back
from headjax.heads.surgery import count_units, map_feed_forward, remove_layers
from headjax.hub.exporting import layout_of_export
from headjax.models import walk
from headjax.shrinking.choice import NO_LAYER, Choice, ChoiceSummary, Option, Prices, choose, choose_if_any
from headjax.shrinking.measure import kept_moments, measure
from headjax.shrinking.shrink import build, measured_prices, measurements
from tests import tiny
from tests.closeness import assert_close
from tests.compiled import programs
from tests.models.test_encoder import config as encoder
from tests.models.test_encoder_decoder import t5
from tests.selected import first

BATCHES = [tiny.tokens(16, 12, seed) for seed in range(4)]
GRID = headjax.SearchSpace(
    heads=(0.5, 0.0),
    units=(0.5, 0.25),
    cached=(headjax.SubLayerSize(1.0, "grouped", 0.5), headjax.SubLayerSize(0.5, "latent", 0.5)),
    others=(),
)
LAYERS = headjax.SearchSpace(heads=(), units=(), cached=(), others=())


@pytest.fixture(scope="module")
def model():
    return tiny.model(tiny.decoder_config(tiny.layer(), tiny.layer(), tiny.layer()))


@pytest.fixture(scope="module")
def table(model):
    return measured_prices(model, BATCHES, headjax.MeasureConfig(space=GRID, examples=32))


def summed(model):
    """Parameters of attention and feed-forwards, FLOPs and cache of a model."""
    found = headjax.summarize(model.config, 12)
    attention = sum(layer.parameters for layer in found.layers)
    units = sum(count for count in count_units(model).values())
    return attention, units, found.flops, found.cache_bytes_per_token


@pytest.mark.parametrize(
    "budget",
    first(1, [headjax.Budget(parameters=0.5), headjax.Budget(cache=0.25, parameters=0.8), headjax.Budget(flops=0.7)]),
)
def test_the_built_model_has_the_form_and_the_costs_that_were_chosen(model, budget):
    found = headjax.shrink(model, BATCHES, budget, measuring=headjax.MeasureConfig(space=GRID, examples=16, length=12))
    costs, options = found.choice.costs, found.choice.options
    attention, units, flops, cache = summed(found.model)
    assert units == sum(option.units for option in options.values() if option.units)
    per_unit = 2 * tiny.WIDTH + 1
    assert costs["parameters"] == attention + per_unit * units + 3 * tiny.WIDTH
    assert (costs["flops"], costs["cache"]) == (flops, cache)
    for name, limit in budget.limits(found.prices).items():
        assert costs[name] <= limit
    kept = {place: option.heads for place, option in options.items() if option.heads is not None}
    for layer, form in enumerate(found.model.config.attentions()["decoder"]):
        assert tuple(sorted(form.ids)) == kept[f"decoder/{layer}"]
    entry = found.model.history[-1]
    assert entry["action"] == "shrink"
    assert set(entry["layers"]) == set(options)
    out = found.model(BATCHES[0]).require_logits()
    assert np.isfinite(np.asarray(out)).all()


def test_damages_are_measured_on_examples_that_repaired_nothing(model):
    """With fewer tokens than units a map fits its own examples, and its damage there says nothing of others."""
    few = [tiny.tokens(2, 12, seed) for seed in range(4)]
    judged, solved = held_back(few, 4)
    assert len(judged) == len(solved) == 2
    assert all(one is not other for one in judged for other in solved)
    assert held_back(few[:1], 1) == (few[:1], few[:1])
    place = "decoder/1/feed_forward"
    options = measured_prices(model, few, headjax.MeasureConfig(space=GRID, examples=4)).options
    chosen = {name: own[0] for name, own in options.items()} | {place: options[place][1]}
    built = build(model, solved, Choice(chosen, 0.0, 0.0, 0.0, {}))
    assert options[place][1].damage > 1.5 * agreement(model, built, solved).distance


def test_damages_predict_the_change_of_the_output_of_the_whole_model(model, table):
    """Every form alone, built and compared with the original model on the examples that it was judged on."""
    judged, solved = held_back(BATCHES, 32)
    predicted, measured = [], []
    for place in ("decoder/0", "decoder/2", "decoder/1/feed_forward"):
        for option in (option for option in table.options[place][1:] if option.kind != NO_LAYER):
            chosen = {name: own[0] for name, own in table.options.items()} | {place: option}
            built = build(model, solved, Choice(chosen, 0.0, 0.0, 0.0, {}))
            predicted.append(option.damage)
            measured.append(agreement(model, built, judged).distance)
    ratios = np.array(predicted) / measured
    assert ratios.min() > 0.5
    assert ratios.max() < 2.0
    assert spearmanr(predicted, measured).statistic > 0.9


def test_programs_do_not_grow_with_depth():
    space, counts = dataclasses.replace(GRID, heads=(0.5,), cached=()), []
    for depth in (2, 3, 6):
        whole = tiny.model(tiny.decoder_config(*(tiny.layer(tiny.multi_head(head_dim=5)),) * depth))
        counts.append(
            programs(lambda whole=whole: measure(whole, BATCHES, headjax.MeasureConfig(space=space, examples=32)))
        )
    assert 0 < counts[2] <= counts[1] + 2


def test_what_others_can_stand_in_for_costs_nothing(model):
    """Units that are there twice, and heads that read and write alike: half can go."""

    def twice(found):
        half = dict(found.params)
        index = jnp.arange(32) % 16
        for name, axis in (("up", 1), ("up_bias", 0), ("down", 0)):
            half[name] = jnp.take(found.params[name], index, axis=axis)
        return found.holding(half)

    doubled = map_feed_forward(model, twice)
    space = headjax.SearchSpace(heads=(), units=(0.5, 0.25), cached=(), others=())
    table = measured_prices(doubled, BATCHES, headjax.MeasureConfig(space=space, examples=64))
    for place in ("decoder/0/feed_forward", "decoder/1/feed_forward", "decoder/2/feed_forward"):
        _, half, quarter, _ = table.options[place]
        assert half.damage < 1e-4 < quarter.damage


def test_heads_need_no_more_dimensions_than_their_queries_have():
    """Of heads of 8 dimensions, 4 are used: those 4 change nothing, 2 do, and both cost what the table says."""
    whole = tiny.model(tiny.decoder_config(*(tiny.layer(tiny.multi_head(2, 8)),) * 2))

    def halved(found):
        return found.holding({name: found.params[name].at[..., 4:].set(0.0) for name in ("query", "query_bias")})

    flat = headjax.map_attention(whole, halved)
    levels = headjax.SubLayerSize(1.0, "fixed", 0.5), headjax.SubLayerSize(1.0, "fixed", 0.25)
    space = headjax.SearchSpace(heads=(), units=(), cached=levels, others=())
    table = measured_prices(flat, BATCHES, headjax.MeasureConfig(space=space, examples=32, length=12))
    for number in range(2):
        _, half, quarter, _ = table.options[f"decoder/{number}"]
        assert half.damage < 1e-6 < 1e-4 < quarter.damage
    for level in (1, 2):
        chosen = {name: own[level] if own[0].heads else own[0] for name, own in table.options.items()}
        built = build(flat, BATCHES, Choice(chosen, 0.0, 0.0, 0.0, {}))
        assert {form.head_dim for form in built.config.attentions()["decoder"]} == {8 >> level}
        found = headjax.summarize(built.config, 12)
        spent = {name: table.cost(list(chosen.values()), name) for name in ("flops", "cache")}
        assert (found.flops, found.cache_bytes_per_token) == (spent["flops"], spent["cache"])
        assert [layer.parameters for layer in found.layers] == [chosen[f"decoder/{n}"].parameters for n in range(2)]
        if level == 1:
            assert agreement(flat, built, BATCHES).distance < 1e-6


def random_table(seed, layers=3, options=3):
    rng = np.random.default_rng(seed)
    found = {}
    for layer, slot in itertools.product(range(layers), ("", "/feed_forward")):
        name, heads = f"encoder/{layer}{slot}", None if slot else (0,)
        own = [Option(name, heads=heads, parameters=100.0, flops=50.0)]
        for level in range(1, options):
            damage, parameters, flops = rng.uniform(0, 1), rng.integers(0, 100), rng.integers(0, 50)
            own.append(Option(name, str(level), "heads", heads, "", None, damage, float(parameters), float(flops)))
        found[name] = (*own, Option(name, "no layer", NO_LAYER, heads, damage=rng.uniform(0, 1)))
    return Prices(found, {"parameters": 10.0, "flops": 0.0, "cache": 0.0, "latency": 0.0}, "kl")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("uniform", [False, True])
def test_choices_are_the_best_of_all(seed, uniform):
    table, limits = random_table(seed), {"parameters": 250.0, "flops": 130.0}

    def within(chosen):
        gone = [option.kind == NO_LAYER for option in chosen]
        left = [option for option in chosen if option.kind != NO_LAYER]
        same = len({(option.heads, option.level) for option in left}) == 2 or not uniform
        same = same and gone[::2] == gone[1::2] and not all(gone)
        return same and all(table.cost(chosen, name) <= limit for name, limit in limits.items())

    possible = filter(within, itertools.product(*table.options.values()))
    best = min((sum(option.damage for option in chosen) for chosen in possible), default=None)
    found = choose_if_any(table, limits, uniform=uniform)
    assert (found is None) == (best is None)
    if found is not None:
        assert found.damage == pytest.approx(best)
        assert found.bound <= found.damage
        assert within(list(found.options.values()))


def test_a_budget_that_nothing_keeps_names_it(table):
    with pytest.raises(headjax.HeadjaxError, match="cache"):
        choose(
            random_table(0)._replace(rest={"parameters": 0.0, "flops": 0.0, "cache": 9.0, "latency": 0.0}), {"cache": 8}
        )
    for wrong in ({"parameters": 0.0}, {"flops": -1.0}):
        with pytest.raises(headjax.HeadjaxError, match=next(iter(wrong))):
            headjax.Budget(**wrong)


def test_measurements_are_kept_and_found_again(model, tmp_path, monkeypatch):
    work, titles, measured = str(tmp_path / "work"), [], []

    def told(title, total, unit):
        titles.append((title, total, unit))
        return silent(title, total, unit)

    config = headjax.MeasureConfig(space=GRID, examples=16, work=work)
    first = measured_prices(model, BATCHES, config, begin=measured.append, progress=told)
    assert titles[0] == ("measuring forms", sum(len(own) - 1 for own in first.options.values()), "form")
    file = tmp_path / "work" / "measurements.json"
    data = json.loads(file.read_text())
    del data["found"]["decoder/1"], data["found"]["layers"]  # as of a run that was stopped
    file.write_text(json.dumps(data))
    assert measured_prices(model, BATCHES, config) == first
    monkeypatch.setattr(Sensitivity, "__init__", None)  # nothing is left to measure
    assert measured_prices(model, BATCHES, config, begin=measured.append) == first
    assert measured == [True, False]


def test_another_budget_builds_from_moments_that_were_kept(model, tmp_path):
    """Both budgets convert; the moments are those of all examples, and others than this study's are not read."""
    space = headjax.SearchSpace(
        heads=(), units=(), cached=(headjax.SubLayerSize(1.0, "latent", 0.5),), others=(), layers=False
    )
    config, changed = (headjax.MeasureConfig(space=space, examples=32, work=str(tmp_path / name)) for name in "ab")
    headjax.shrink(model, BATCHES, headjax.Budget(cache=0.9), measuring=config)
    second = headjax.shrink(model, BATCHES, headjax.Budget(cache=0.7), measuring=config)
    assert any(option.to for option in second.choice.options.values())
    files = sorted((tmp_path / "a").glob("*.npz"))
    assert [file.stem for file in files] == ["decoder-0", "decoder-1", "decoder-2"]
    alone = build(model, BATCHES, second.choice)
    assert_close(second.model(BATCHES[0]).logits, alone(BATCHES[0]).logits, sums=100 * tiny.SUMS)
    moments = kept_moments(measurements(model, BATCHES, config), [("decoder", 1)])
    for mine, other in zip(moments["decoder", 1], collect(model, BATCHES)["decoder", 1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    headjax.shrink(model, BATCHES[:3], headjax.Budget(cache=0.9), measuring=changed)
    shutil.copy(tmp_path / "b" / files[1].name, files[1])
    assert kept_moments(measurements(model, BATCHES, config), [("decoder", 1)]) is None
    files[1].write_bytes(b"cut")
    assert kept_moments(measurements(model, BATCHES, config), [("decoder", 1)]) is None
    assert kept_moments(measurements(model, BATCHES, config), [("decoder", 2)]) is not None


def test_layers_that_share_their_parameters_are_refused():
    config = encoder("albert", num_layers=2)
    with pytest.raises(headjax.HeadjaxError, match="encoder/0"):
        headjax.shrink(tiny.model(config), BATCHES, headjax.Budget(parameters=0.5))


def test_heads_go_in_whole_groups_and_keep_their_numbers(model):
    grouped = headjax.convert(model, "grouped:kv_heads=2,grouping=consecutive").model
    found = measure(grouped, BATCHES, headjax.MeasureConfig(space=GRID, examples=16))
    for number, attention in enumerate(grouped.config.attentions()["decoder"]):
        half = next(each.attention for each in found[f"decoder/{number}"] if each.size == headjax.SubLayerSize(0.5))
        groups = dict(zip(attention.ids, attention.groups, strict=True))
        first, second = half.ids
        assert groups[first] == groups[second]
    assert headjax.all_heads(grouped.config)[0] == headjax.HeadId("decoder", 0, 0)


@pytest.mark.whole
def test_encoders_decoders_and_their_cross_attention_shrink_together_by_their_labels():
    whole = tiny.model(t5(attention=tiny.multi_head(), gated=False, activation="relu", num_layers=1))
    targets = [tiny.tokens(16, 10, seed + 9)["input_ids"] for seed in range(2)]
    batches = [batch | {"labels": labels} for batch, labels in zip(BATCHES, targets, strict=False)]
    grid = dataclasses.replace(
        GRID, heads=(0.5,), units=(0.5,), others=(headjax.SubLayerSize(1.0, "collaborative", 0.5),)
    )
    config = headjax.MeasureConfig(space=grid, labels=True, length=12)
    found = headjax.shrink(whole, batches, headjax.Budget(parameters=0.6), measuring=config)
    assert found.prices.damage == "loss"
    assert set(found.choice.options) == {
        "encoder/0", "encoder/0/feed_forward", "decoder/0", "cross/0", "decoder/0/feed_forward"
    }  # fmt: skip
    assert found.choice.costs["flops"] == headjax.summarize(found.model.config, 12).flops
    assert found.choice.costs["parameters"] <= 0.6 * found.prices.whole("parameters")


def test_native_choices_are_those_that_the_family_has():
    """BERT's head size is width / heads, so that heads cannot go; units can, as many of every layer."""
    whole = tiny.model(encoder(num_layers=2))
    found = headjax.shrink(
        whole, BATCHES, headjax.Budget(parameters=0.8), native=True, measuring=headjax.MeasureConfig(space=GRID)
    )
    assert {option.kind for option in found.choice.options.values()} == {"whole", "units"}
    assert len(set(count_units(found.model).values())) == 1
    assert layout_of_export(found.model) == ("bert", "native")


@pytest.mark.parametrize("name", first(2, ["decoder", "t5", "encoder"]))
def test_no_layer_costs_what_the_model_without_it_says_and_less_with_the_next_one_repaired(name):
    """Each layer alone, of stacks whose norms stand before and after sub-layers, and that read one another."""
    configs = {"decoder": tiny.decoder_config(*(tiny.layer(),) * 3), "encoder": encoder(num_layers=3)}
    whole = tiny.model(configs.get(name) or t5(attention=tiny.multi_head(), num_layers=2))
    batches = BATCHES[:2]
    if name == "t5":
        batches = [batch | {"labels": tiny.tokens(16, 10, 9 + n)["input_ids"]} for n, batch in enumerate(batches)]
    judged, _ = held_back(batches, 16)
    table = measured_prices(whole, batches, headjax.MeasureConfig(space=LAYERS, examples=16, labels=name == "t5"))
    for stack, own in whole.config.stacks().items():
        for layer in range(len(own.layers)):
            without = remove_layers(whole, {(stack, layer)})
            apart = agreement(whole, without, judged).distance
            if name == "t5":
                losses = [[model.loss(batch) for batch in judged] for model in (whole, without)]
                before, after = (sum(float(loss.total.sum()) for loss in each) for each in losses)
                apart = (after - before) / sum(float(loss.weight.sum()) for loss in losses[0])
            options = [each for options in table.options.values() for each in options if each.kind == NO_LAYER]
            damages = [option.damage for option in options if option.layer == (stack, str(layer))]
            assert len(damages) == len(own.layers[layer].slots)
            if layer == len(own.layers) - 1:  # no layer behind it can be repaired
                assert sum(damages) == pytest.approx(apart, rel=1e-3, abs=1e-6)
            else:
                assert name == "t5" or sum(damages) < 0.95 * apart  # the loss of a model that is not trained may fall


def test_a_layer_that_does_almost_nothing_goes_alone(model, tmp_path):
    places = itertools.count()

    def quiet(found):
        names = ("down", "down_bias") if "down" in found.params else ("output",)
        factor = 0.03 if next(places) % 3 == 1 else 1.0
        scaled = {name: jax.tree.map(lambda array: factor * array, found.params[name]) for name in names}
        return found.holding(found.params | scaled)

    whole = map_feed_forward(headjax.map_attention(model, quiet), quiet)
    found = headjax.shrink(
        whole, BATCHES, headjax.Budget(parameters=0.67), measuring=headjax.MeasureConfig(space=GRID, examples=32)
    )
    told = {name: option.description for name, option in found.choice.options.items() if option.kind != "whole"}
    assert told == {"decoder/1": "no layer", "decoder/1/feed_forward": "no layer"}
    assert found.removed == tuple(headjax.HeadId("decoder", 1, head) for head in range(4))
    assert [entry["action"] for entry in found.model.history] == ["reconstruct", "remove_layers", "shrink"]
    assert found.choice.costs["parameters"] == found.prices.whole("parameters") * 2 / 3
    assert (found.frontier[0].removed_layers, found.frontier[-1].removed_layers) == (0, 1)
    entry = ChoiceSummary(found.prices, "parameters", found.choice).layers()[2]
    assert (entry["form"], entry["heads"], entry["smaller"], entry["larger"]) == ("no layer", (), None, None)
    assert ChoiceSummary(found.prices, "parameters", found.choice).layer_table().rows[2][1] == "no layer"
    # Without repair the model is the walk that passes by the layer; the repair mends what that loses.
    state = walk.embed(whole, BATCHES[0])
    for block in whole.blocks():
        state = state if block.place.value == 1 else walk.step(block, state)
    without = remove_layers(whole, found.choice.removed)
    assert_close(without(BATCHES[0]).logits, whole.finish(state).logits, sums=tiny.SUMS)
    assert agreement(whole, found.model, BATCHES).distance < agreement(whole, without, BATCHES).distance < 0.01
    found.model.save(tmp_path / "small")
    loaded = headjax.load(tmp_path / "small")
    assert loaded.config.num_layers == 2
    np.testing.assert_array_equal(loaded(BATCHES[0]).logits, found.model(BATCHES[0]).logits)


@pytest.mark.parity
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the parity extra")
def test_a_model_of_fewer_layers_is_an_ordinary_one_in_transformers(tmp_path):
    import torch
    import transformers

    whole = tiny.model(encoder(num_layers=3))
    config = headjax.MeasureConfig(space=LAYERS, examples=32)
    found = headjax.shrink(whole, BATCHES, headjax.Budget(parameters=0.67), native=True, measuring=config)
    assert headjax.to_huggingface(found.model, tmp_path / "small").layout == "native"
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "small").eval()
    assert (type(theirs).__name__, theirs.config.num_hidden_layers) == ("BertModel", 2)
    hidden = theirs(torch.from_numpy(BATCHES[0]["input_ids"].astype(np.int64))).last_hidden_state
    assert_close(found.model(BATCHES[0]).hidden, hidden.detach().numpy(), sums=tiny.SUMS)
