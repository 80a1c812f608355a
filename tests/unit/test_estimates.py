"""Cycle estimates of TPU programs: missing estimates, and random bits."""

import pytest

from mnmt_jax.cost.cycle_estimates import CycleEstimates, estimate_cycles
from mnmt_jax.distributed.dropout_mask import MULTIPLIERS

CYCLES = 'backend_config={"estimated_cycles":"%d"}'
THRICE = 'config={"known_trip_count":{"n":"3"}}'
# As libtpu 0.0.42.1 writes them; a rotation of threefry's is a shift to either side and an `or`.
ROTATION = (
    "  %shift.{0} = u32[8]{{0}} shift-right-logical(%a, %b)\n  %or.{0} = u32[8]{{0}} or(%a, %b)\n"
)
THREEFRY = "".join(ROTATION.format(number) for number in range(20))
# As Pallas writes what `mnmt_jax.model.attention.tpu_kernel` states of a call, with its lines.
KERNEL = """frontend_attributes={kernel_metadata={
"core_cycles":"4000",
"moved_bytes":"700"
}}"""
PROGRAM = f"""\
HloModule step, is_scheduled=true

%bits (a: u32[8]) -> u32[8] {{
{THREEFRY}}}

%dropped (a: u32[8]) -> f32[8] {{
  %bits.1 = u32[8]{{0}} fusion(%a), kind=kLoop, calls=%bits
  ROOT %kept = f32[8]{{0}} select(%m, %x, %y)
}}

%hashed (a: u32[8]) -> u32[8] {{
  %one = u32[8]{{0}} shift-right-logical(%a, %b)
}}

%placed (a: u32[8]) -> u32[8] {{
  %c.1 = u32[]{{:T(128)}} constant({MULTIPLIERS[0]})
  %one = u32[8]{{0}} shift-right-logical(%a, %b)
}}

%add (a: f32[], b: f32[]) -> f32[] {{
  ROOT %sum = f32[] add(%a, %b)
}}

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %x = f32[8]{{0:T(128)S(1)}} get-tuple-element(%state), index=1
  %copy-start.1 = (f32[8]{{0:T(128)S(1)}}, f32[8]{{0:T(128)}}, u32[]{{:S(2)}}) copy-start(%x)
  %copy-done.1 = f32[8]{{0:T(128)S(1)}} copy-done(%copy-start.1)
  %drop.1 = f32[8]{{0}} fusion(%k), kind=kLoop, calls=%dropped, {CYCLES % 100}
  %fold.1 = u32[1]{{0}} xor(%k, %i), metadata={{op_name="jit(step)/jit(_threefry_fold_in)/xor"}}
  %part.1 = f32[8]{{0}} reduce-scatter(%copy-done.1), replica_groups={{}}, to_apply=%add
  %read.1 = (f32[8]{{0}}) custom-call(%x), custom_call_target="tpu_custom_call", {KERNEL}
  %part.2 = f32[8]{{0}} get-tuple-element(%read.1), index=0, {KERNEL}
  %other.1 = bf16[8]{{0}} custom-call(%x), custom_call_target="tpu_custom_call"
  %merged.1 = f32[8]{{0}} custom-call(%x), custom_call_target="ConcatBitcast"
  ROOT %next = (s32[], f32[8]) tuple(%i, %part.1)
}}

%again (state: (s32[], f32[8])) -> pred[] {{
  ROOT %less = pred[] compare(%i, %n), direction=LT
}}

ENTRY %main (p: f32[8], k: u32[2]) -> f32[] {{
  %p = f32[8]{{0}} parameter(0)
  %g_fusion.2 = f32[8]{{0}} fusion(%p), kind=kCustom, calls=%hashed
  %h = f32[8]{{0}} fusion(%p), kind=kLoop, calls=%hashed, {CYCLES % 50}
  %q = f32[8]{{0}} fusion(%p), kind=kLoop, calls=%placed, {CYCLES % 11}
  %rng = (u64[2]{{0}}, u32[8]{{0}}) rng-bit-generator(%k), algorithm=rng_default, {CYCLES % 7}
  %more = (u64[2]{{0}}, u32[8]{{0}}) rng-bit-generator(%k), algorithm=rng_default
  %l = (s32[], f32[8]) while(%i), condition=%again, body=%body, {THRICE}
  %all = (f32[8]{{0:T(128)}}, f32[]{{:T(128)}}) all-reduce-start(%p, %z), to_apply=%add
  ROOT %one = f32[] multiply(%y, %z)
}}
"""


@pytest.fixture(scope="module")
def found() -> CycleEstimates:
    return estimate_cycles(PROGRAM)


def test_loop_iterations_are_counted(found):
    assert (found.counted_once, found.executed) == (168, 3 * 100 + 68)


def test_random_bits_are_found_inside_fusions(found):
    """Twenty shifts, also in nested fusions; dropout's hash constant; the hardware generator.

    One shift is none.
    """
    assert found.random == 3 * 100 + 11 + 7


def test_instructions_without_estimate_are_counted_by_kind(found):
    """Parameters, tuples and ends of copies are not counted."""
    assert found.without_cycles == {
        "random bits": 3 + 1,
        "copy": 3,
        "reduce-scatter": 3,
        "custom-call tpu_custom_call": 3,  # the one that states nothing of itself
        "custom-call ConcatBitcast": 3,
        "scalar": 3 + 1,
        "fusion g": 1,
        "all-reduce": 1,
    }
    assert next(iter(found.without_cycles)) == "random bits"


def test_kernels_declare_their_own_cycles_and_bytes(found):
    assert found.kernels == {"core_cycles": 3 * 4000, "moved_bytes": 3 * 700}
