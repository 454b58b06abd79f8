"""Compiled text to messages, and the messages of the train step on eight devices: the expected and no others."""

import math
import re

import pytest

import headjax
from headjax.core.tensors import count
from headjax.mesh.rules import shardings
from headjax.plan.plan import Collective, collectives
from headjax.training.step import Trainer
from tests import tiny
from tests.models.test_encoder import config as encoder
from tests.tiny import flatten

TEXT = """
HloModule jit_step, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]{0}) parameter(0)
  %part = f32[2,4]{1,0:T(8,128)S(1)} fusion(%state), kind=kLoop, calls=%fused
  %kernel = f32[2,4]{1,0} custom-call(%part), frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 256}"
}}, metadata={op_name="jit(step)/kernel"}
  %whole = bf16[16,4]{1,0} all-gather(%part), dimensions={0}
  %sent = (f32[2,4]{1,0}, u32[], token[]) send(%part, %token), BETWEEN_SLICES:ONE_TO_ONE
  ROOT %next = (s32[], f32[8]{0}) tuple(%whole)
}

%condition (state: (s32[], f32[8])) -> pred[] {
  %bound = s32[]{:T(128)} constant(3)
  %state = (s32[], f32[8]{0}) parameter(0)
  %index = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] compare(%index, %bound), direction=LT
}

%all-reduce-scatter.1 (whole: f32[64]) -> f32[8] {
  %whole = f32[64]{0} parameter(0)
  %reduced = f32[64]{0} all-reduce(%whole), to_apply=%add
  ROOT %slice = f32[8]{0} dynamic-slice(%reduced), dynamic_slice_sizes={8}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %y = (f32[4]{0}, /*index=1*/f32[]) all-reduce(%x, %scalar), replica_groups={{0,1}}, to_apply=%add
  %scalar = f32[] constant(1)
  %started = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), dimensions={0}
  %done = f32[8]{0} all-gather-done(%started)
  %loop = (s32[], f32[8]{0}) while(%init), condition=%condition, body=%body
  %noted = (s32[], f32[8]{0}) while(%init), condition=%x, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %token = token[] after-all()
  %passed = (f32[4]{0}, u32[], token[]) send(%x, %token), BETWEEN_SLICES:ALL_REDUCE
  %over = token[] send-done(%passed), BETWEEN_SLICES:NONE
  %told = (f32[4]{0}, u32[], token[]) send(%x, %token), frontend_attributes={_xla_host_transfer_handler_name="callback"}
  %scattered = f32[8]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %result = f32[4]{0} copy(%x)
}
"""
TEXT = re.sub(
    r"BETWEEN_SLICES:(\w+)",
    r'frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="\1"}',
    TEXT,
)


def test_loops_tuples_fusions_asynchronous_pairs_and_what_hosts_send_to_other_slices_are_counted():
    assert collectives(TEXT) == {
        "all-reduce": Collective(1, 16 + 4),
        "all-gather": Collective(1 + 3 + 5, 32 + 8 * 16 * 4 * 2),
        "reduce-scatter": Collective(1, 256),
        "all-reduce between slices": Collective(1, 16),
        "collective-permute between slices": Collective(3 + 5, 8 * 2 * 4 * 4),
    }


BATCH, LENGTH, VOCABULARY = 16, tiny.MAX_LENGTH, 48
TABLE = 4 * VOCABULARY * tiny.WIDTH
"""Bytes of the token embeddings."""


def decoder(tied):
    return tiny.decoder_config(vocab_size=VOCABULARY, tied=tied)


def of_a_step(config, mesh):
    optimizer = headjax.AdamW(schedule=headjax.ConstantRate(peak=0.1)).build(config.tensors(), 10)
    trainer = Trainer(config, optimizer, mesh)
    lowered = trainer.lower(trainer.abstract_state(), config.example_batch(BATCH, LENGTH))
    return collectives(lowered.compile().as_text())


@pytest.mark.parametrize("tied", [False, True])
def test_data_parallelism_sends_one_gradient_and_three_scalars(tied):
    """Where the table of embeddings is used twice, XLA reduces both parts of its gradient before it adds them."""
    config = decoder(tied)
    gradient = 4 * count(config.tensors())
    sent = of_a_step(config, headjax.MeshConfig(data=8).build())
    assert sent.keys() == {"all-reduce"}
    assert sent["all-reduce"].bytes == gradient + tied * TABLE + 3 * 4


def test_fsdp_gathers_weights_and_never_reduces_activations():
    config = decoder(tied=False)
    gradient = 4 * count(config.tensors())
    sent = of_a_step(config, headjax.MeshConfig(data=1, fsdp=8).build())
    assert sent.keys() <= {"all-gather", "all-reduce", "reduce-scatter", "all-to-all"}
    # Weights twice at most, forward and backward; the table of embeddings is not gathered but looked up by columns.
    assert sent["all-gather"].bytes < 2 * (gradient - TABLE)
    # One gradient and the scalars of norms: activations would be several times that.
    reduced = sum(sent[kind].bytes for kind in ("all-reduce", "reduce-scatter") if kind in sent)
    assert gradient - TABLE <= reduced <= gradient - TABLE + 256
    # The looked-up columns of a device's examples, and their gradient.
    assert sent["all-to-all"].bytes == 2 * 4 * (BATCH // 8) * LENGTH * tiny.WIDTH


def test_all_three_axes_together_replicate_no_activation(capfd):
    """The partitioner says where it knows no way but over whole arrays on every device."""
    config = encoder(num_layers=1, vocab_size=VOCABULARY, task=headjax.tasks.MaskedLanguageModel())
    of_a_step(config, headjax.MeshConfig(data=2, fsdp=2, model=2).build())
    assert "full rematerialization" not in capfd.readouterr().err


def test_splitting_heads_reduces_activations_where_sub_layers_end_and_begin():
    config = decoder(tied=False)
    mesh = headjax.MeshConfig(data=4, model=2).build()
    places = flatten(shardings(config.tensors(), mesh))
    local = sum(
        4 * math.prod(places[name].shard_shape(tensor.shape)) for name, tensor in flatten(config.tensors()).items()
    )
    activations = 4 * (BATCH // 4) * LENGTH * tiny.WIDTH
    layers = config.num_layers
    # Forward: a sum after attention and one after the feed-forward sub-layer. Backward: one into the feed-forward one,
    # one each into query, key and value. Besides: one for the lookup of embeddings, one back from the logits.
    sums = layers * (2 + 4) + 2
    sent = of_a_step(config, mesh)
    assert sent.keys() == {"all-reduce"}
    numbers_per_token = 4 * (BATCH // 4) * LENGTH
    assert 0 <= sent["all-reduce"].bytes - sums * activations - local <= 4 * numbers_per_token
