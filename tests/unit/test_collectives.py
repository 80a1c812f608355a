"""Reading exchanges from a compiled program's text, on lines written by hand."""

import pytest

from mnmt_jax.collectives import Collective, collectives

MESH = {"data": 2, "fsdp": 2, "tensor": 2}
PROGRAM = """\
HloModule step, is_scheduled=true

%body.1 (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %sum.2 = f32[4,8]{1,0} all-reduce(%part), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
  %ag = (bf16[2,8]{1,0}, bf16[4,8]{1,0}) all-gather-start(%w), replica_groups=[4,2]<=[2,2,2]T(0,2,1)
}

ENTRY %main.9 (p: f32[4,8]) -> f32[] {
  %l = (s32[], f32[4,8]) while(%init), body=%body.1, backend_config={"known_trip_count":{"n":"3"}}
  %loss = (f32[], f32[]) all-reduce(%a, %b), replica_groups=[1,8]<=[8], to_apply=%add
  %next = f32[16]{0} collective-permute(%c), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}
  %alone = f32[16]{0} all-reduce(%d), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}
  ROOT %done = f32[] add(%x, %y)
}
"""


def test_kinds_axes_rounds_and_bytes():
    assert collectives(PROGRAM, MESH) == (
        Collective("all-reduce", ("data",), 3, 3 * 4 * 8 * 4),
        Collective("all-gather", ("fsdp",), 3, 3 * 4 * 8 * 2),
        Collective("collective-permute", ("tensor",), 1, 16 * 4),
        Collective("all-reduce", ("data", "fsdp", "tensor"), 1, 8),
    )


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("replica_groups={}", ("data", "fsdp", "tensor")),
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ("tensor",)),
        ("replica_groups=[2,4]<=[8]", ("fsdp", "tensor")),
        ("replica_groups=[4,2]<=[4,2]", ("tensor",)),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", ("data", "fsdp")),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ("data",)),
    ],
)
def test_axes_of_groups(groups, axes):
    line = f"  %r = pred[3,4]{{1,0}} reduce-scatter(%a), {groups}, dimensions={{0}}"
    assert collectives(line, MESH) == (Collective("reduce-scatter", axes, 1, 12),)


def test_a_program_without_exchange_has_none():
    assert (
        collectives("ENTRY %main (p: f32[]) -> f32[] {\n ROOT %a = f32[] add(%p, %p)\n}", MESH)
        == ()
    )
