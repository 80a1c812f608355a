"""Overlap of exchanges with other work in a program's schedule."""

from mnmt_jax.cost.overlap import Overlap, find_overlaps

PROGRAM = """\
HloModule step, is_scheduled=true

%begin (w: bf16[2,8]) -> bf16[4,8] {
  %ag.1 = bf16[4,8]{1,0} all-gather(%w), channel_id=7, replica_groups={}, attributes={chain_id="0"}
}

%go_on (w: bf16[2,8], y: bf16[4]) -> bf16[4,8] {
  %ag.2 = bf16[4,8]{1,0} all-gather(%w), channel_id=7, replica_groups={}, attributes={chain_id="0"}
}

%end (w: bf16[2,8]) -> bf16[4,8] {
  %ag.3 = bf16[4,8]{1,0} all-gather(%w), channel_id=7, replica_groups={}, attributes={chain_id="0"}
}

%body (state: (s32[])) -> (s32[]) {
  %a = f32[8]{0} fusion(%x), calls=%other, backend_config={"estimated_cycles":"1000"}
  %async-collective-start.1 = (bf16[4,8]{1,0}, u32[]) fusion(%w), kind=kCustom, calls=%begin
  %b = bf16[4,8]{1,0} fusion(%w, %y), calls=%go_on, backend_config={"estimated_cycles":"30"}
  %c = f32[8]{0} fusion(%x), calls=%other, backend_config={"estimated_cycles":"4"}
  %async-collective-done.1 = bf16[4,8]{1,0} fusion(%b), kind=kCustom, calls=%end
  %alone = bf16[4,8]{1,0} all-gather(%v), channel_id=8, replica_groups={}
}

ENTRY %main (p: f32[4,8]) -> f32[] {
  %sum = f32[5]{0} all-reduce-start(%p), replica_groups={}, to_apply=%add
  %l = (s32[]) while(%i), condition=%c, body=%body, config={"known_trip_count":{"n":"3"}}
  %d = f32[8]{0} fusion(%x), calls=%other, backend_config={"estimated_cycles":"7"}
  %summed = f32[5]{0} all-reduce-done(%sum)
  %moved = f32[9]{0} copy-done(%copy)
  ROOT %e = f32[] add(%x, %y), backend_config={"estimated_cycles":"500"}
}
"""


def test_cycles_between_start_and_end():
    assert find_overlaps(PROGRAM) == (
        Overlap("all-gather", 3, 3 * 4 * 8 * 2, 3 * (30 + 4)),
        Overlap("all-reduce", 1, 5 * 4, 7),
    )


def test_exchanges_alone_are_not_overlapped():
    program = "  %r = f32[3]{0} all-reduce(%a), replica_groups={}\n  %c = f32[3]{0} copy-done(%r)"
    assert find_overlaps(program) == ()
