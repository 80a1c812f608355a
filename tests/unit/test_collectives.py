"""Parsing of collectives in a compiled program's text."""

import pytest

from mnmt_jax.cost.collectives import Collective, find_collectives
from mnmt_jax.cost.cycle_estimates import estimate_cycles

MESH = {"data": 2, "fsdp": 2, "tensor": 2}
PROGRAM = """\
HloModule step, is_scheduled=true

%body.1 (state: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %sum.2 = f32[4,8]{1,0} all-reduce(%part), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
  %ag = (bf16[2,8]{1,0}, bf16[4,8]{1,0}) all-gather-start(%w), replica_groups=[4,2]<=[2,2,2]T(0,2,1)
}

ENTRY %main.9 (p: f32[4,8]) -> f32[] {
  %l = (s32[]) while(%i), condition=%c, body=%body.1, config={"known_trip_count":{"n":"3"}}
  %loss = (f32[], f32[]) all-reduce(%a, %b), replica_groups=[1,8]<=[8], to_apply=%add
  %next = f32[16]{0} collective-permute(%c), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}
  %alone = f32[16]{0} all-reduce(%d), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}
  ROOT %done = f32[] add(%x, %y)
}
"""


def test_kinds_axes_iterations_and_bytes():
    assert find_collectives(PROGRAM, MESH) == (
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
        ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'b','c'}", ("fsdp", "tensor")),
        ("replica_groups=mesh['a'=4,'b'=2] {'a'}", ("data", "fsdp")),
        ("replica_groups=mesh['a'=8] {'a'}", ("data", "fsdp", "tensor")),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", ("fsdp", "tensor")),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ("data",)),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([8]) {'b'}", ("fsdp", "tensor")),
    ],
)
def test_axes_of_groups(groups, axes):
    line = f"  %r = pred[3,4]{{1,0}} reduce-scatter(%a), {groups}, dimensions={{0}}"
    assert find_collectives(line, MESH) == (Collective("reduce-scatter", axes, 1, 12),)


@pytest.mark.parametrize(
    ("result", "kind", "size"),
    [
        ("(bf16[1,8]{1,0}, bf16[1,8]{1,0}, u32[]{:S(2)}, u32[])", "collective-permute", 16),
        ("((f32[2]{0}, bf16[3]{0}), (f32[4]{0}, bf16[6]{0}))", "all-gather", 28),
        ("(f32[2]{0}, bf16[3]{0})", "all-reduce", 14),
    ],
)
def test_bytes_of_asynchronous_collectives_are_those_of_their_results(result, kind, size):
    (actual,) = find_collectives(f"  %r = {result} {kind}-start(%a), replica_groups={{}}", MESH)
    assert actual.bytes == size


NESTED = """\
%again.1 (state: (s32[], f32[8])) -> pred[] {
  %constant.5 = s32[]{:T(128)} constant(16)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %constant.5), direction=LT, metadata={}
}

%again.2 (state: (s32[], f32[8])) -> pred[] {
  %constant.5 = s32[] constant(3)
  %i = s32[] get-tuple-element(%state), index=0
  ROOT %lt.2 = pred[] compare(%i, %constant.5), direction=LT
}

%inner (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %sum = f32[8]{0} all-reduce(%part), replica_groups={}, to_apply=%add
  %f = f32[8]{0} fusion(%x), backend_config={"estimated_cycles":"10"}
}

%outer (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %w.2 = (s32[], f32[8]{0}) while(%t), condition=%again.2, body=%inner
  %g = f32[8]{0} fusion(%x), backend_config={"estimated_cycles":"100"}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %w.1 = (s32[], f32[8]{0}) while(%t), condition=%again.1, body=%outer
  ROOT %h = f32[8]{0} fusion(%x), backend_config={"estimated_cycles":"1000"}
}
"""


def test_iterations_are_read_from_conditions_of_nested_loops():
    (actual,) = find_collectives(NESTED, MESH)
    assert (actual.count, actual.bytes) == (48, 48 * 32)
    actual = estimate_cycles(NESTED)
    assert (actual.counted_once, actual.executed) == (1110, 48 * 10 + 16 * 100 + 1000)
    assert actual.without_cycles == {"all-reduce": 48, "scalar": 16 + 48}


BRANCHES = """\
%first (x: f32[8]) -> f32[8] {
  ROOT %sum.1 = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}

%second (x: f32[8]) -> f32[8] {
  ROOT %sum.2 = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add
}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %c = f32[8]{0} conditional(%i, %x, %y), CALLED
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %l = (s32[]) while(%i), condition=%c, body=%body, config={"known_trip_count":{"n":"6"}}
}
"""


@pytest.mark.parametrize(
    "called",
    [
        "branch_computations={%first, %second}",
        "branch_computations={first, second}, metadata={}",
        "true_computation=%first, false_computation=%second",
    ],
)
def test_every_branch_of_a_conditional_in_a_loop_is_counted(called):
    (actual,) = find_collectives(BRANCHES.replace("CALLED", called), MESH)
    assert (actual.count, actual.bytes) == (2 * 6, 2 * 6 * 32)


SPREAD = """\
%first (w: bf16[2,8]) -> bf16[4,8] {
  %ag.1 = bf16[4,8]{1,0} all-gather(%w), channel_id=7, replica_groups={}, attributes={chain_id="0"}
}

%async_collective_fusion.2 (w: bf16[2,8], y: bf16[4]) -> bf16[4,8] {
  %ag.2 = bf16[4,8]{1,0} all-gather(%w), channel_id=7, replica_groups={}, attributes={chain_id="0"}
}

%body (state: (s32[])) -> (s32[]) {
  %f.1 = bf16[4,8]{1,0} fusion(%w), kind=kCustom, calls=%first
  %f.2 = bf16[4,8]{1,0} fusion(%w, %y), kind=kCustom, calls=%async_collective_fusion.2
  %ag.3 = bf16[4,8]{1,0} all-gather(%v), channel_id=8, replica_groups={}
}

ENTRY %main (p: f32[4,8]) -> f32[] {
  %l = (s32[]) while(%i), condition=%c, body=%body, config={"known_trip_count":{"n":"3"}}
}
"""


def test_a_collective_spread_over_fusions_counts_once():
    (actual,) = find_collectives(SPREAD, MESH)
    assert (actual.count, actual.bytes) == (3 * 2, 3 * 2 * 64)


def transfer(number: int, shape: str) -> str:
    """Return an exchange between slices as libtpu 0.0.42.1 writes it."""
    return (
        f"  %send.{number} = (f32[{shape}]{{2,1,0:T(8,128)}}, u32[], token[]) send(%p, %t), "
        f"channel_id={number}, is_host_transfer=true, frontend_attributes={{"
        '_xla_host_transfer_handler_name="xla_megascale_runtime",'
        f'_xla_host_transfer_rendezvous="all-reduce.{number}_0",'
        '_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:3}",'
        '_xla_megascale_transfer_type="ALL_REDUCE"}, backend_config={"flag_configs":[]}\n'
    )


def test_exchanges_between_slices_are_apart_and_groups_count_within_a_slice():
    within = "  %all = f32[8]{0} all-gather(%w), replica_groups={{0,1,2,3}}\n"
    program = within + transfer(2, "2,8,128") + transfer(4, "1,8,128")
    assert find_collectives(program, MESH, 2) == (
        Collective("all-reduce", ("data",), 2, 3 * 8 * 128 * 4, between_slices=True),
        Collective("all-gather", ("fsdp", "tensor"), 1, 32),
    )
    every = "  %all = f32[8]{0} all-gather(%w), replica_groups={}\n"
    (actual,) = find_collectives(every, MESH, 2)
    assert actual.axes == ("fsdp", "tensor")


def test_a_loop_of_unknown_length_counts_one_iteration():
    """Its condition compares the number of finished rows with all rows."""
    counter = "%i = s32[] get-tuple-element(%state), index=0\n  ROOT %lt.2"
    assert counter in NESTED
    ended = NESTED.replace(
        counter, counter.replace("get-tuple-element(%state), index=0", "sum(%r)")
    )
    (actual,) = find_collectives(ended, MESH)
    assert actual.count == 16


def test_a_program_without_collectives_has_none():
    assert (
        find_collectives("ENTRY %main (p: f32[]) -> f32[] {\n ROOT %a = f32[] add(%p, %p)\n}", MESH)
        == ()
    )
