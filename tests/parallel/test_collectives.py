"""Compiled text to messages, and the messages of the train step on eight devices."""

from headjax.parallel.collectives import Collective, collectives

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
  %whole = bf16[16,4]{1,0} all-gather(%part), dimensions={0}
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
  %scattered = f32[8]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %result = f32[4]{0} copy(%x)
}
"""


def test_loops_tuples_fusions_and_asynchronous_pairs_are_counted():
    assert collectives(TEXT) == {
        "all-reduce": Collective(1, 16 + 4),
        "all-gather": Collective(1 + 3 + 5, 32 + 8 * 16 * 4 * 2),
        "reduce-scatter": Collective(1, 256),
    }
