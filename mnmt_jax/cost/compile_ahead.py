"""Ahead-of-time compilation for absent TPUs or GPUs, with memory and cost analysis.

Bytes per chip, collectives and libtpu's FLOPs are those of the program that would run there.
Seconds are libtpu's cycle estimate, with sequential instructions and without communication, at the
chip's clock; they are not measured. For GPUs there are none.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from mnmt_jax.config.sections import Config
from mnmt_jax.cost.collectives import find_collectives
from mnmt_jax.cost.cycle_estimates import estimate_cycles
from mnmt_jax.cost.overlap import find_overlaps
from mnmt_jax.cost.training_estimate import count_update_flops
from mnmt_jax.data.chunk_plan import ProcessRows
from mnmt_jax.data.converter import (
    TASK,
    BatchExtras,
    Converter,
    Lengths,
    make_converter,
    segments_from_rows,
)
from mnmt_jax.decoding.generate import search_batch
from mnmt_jax.decoding.search import Request
from mnmt_jax.decoding.search_settings import length_limit, make_search
from mnmt_jax.design.fields import Remat
from mnmt_jax.design.generated_batch import Batch
from mnmt_jax.design.layouts import LANGUAGE_MODELS
from mnmt_jax.distributed.chips import Chip, chip_of
from mnmt_jax.distributed.device_order import slices_of
from mnmt_jax.distributed.sharding import (
    batch_sharding,
    batch_shards,
    decoding_state_spec,
    make_mesh,
    replicated,
)
from mnmt_jax.errors import UserError
from mnmt_jax.model.attention.fused import KERNEL_METADATA
from mnmt_jax.training.learner import Learner
from mnmt_jax.training.state import TrainState, abstract_state, make_init, shardings_of
from mnmt_jax.training.train_step import train_step
from mnmt_jax.vocabulary.special_ids import EOS_ID, UNK_ID

PROGRAMS = ("train_step", "prefill", "decode_step", "search")

_TOO_LARGE = re.compile(
    r"(?:Used |\()([\d.]+)([KMGT]?)\)?(?: of | exceeds available HBM \()([\d.]+)([KMGT]?)",
    re.IGNORECASE,
)
_NO_PAIRS = segments_from_rows([[]])
# Shapes do not depend on the ids.
_NO_VOCABULARY: Any = types.SimpleNamespace(
    tag_ids=np.zeros(1, np.int32), eos_id=EOS_ID, mask_id=UNK_ID, size=UNK_ID + 2
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclasses.dataclass(frozen=True)
class AheadOfTimeCompilation:
    """A configuration on a topology.

    Attributes:
        config: configuration of the run.
        vocab_size: entries of the vocabulary.
        devices: from `mnmt_jax.cost.topologies`.
    """

    config: Config
    vocab_size: int
    devices: Sequence[jax.Device]

    @functools.cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """The run's mesh over the devices."""
        return make_mesh(self.config.mesh, self.devices)

    @functools.cached_property
    def learner(self) -> Learner:
        """The run's learner."""
        return Learner.from_config(self.config, self.vocab_size, self.mesh)

    @functools.cached_property
    def chip(self) -> Chip | None:
        """Known properties of the devices; None if unknown."""
        return chip_of(self.devices[0].device_kind)

    def describe(self, programs: Sequence[str] = PROGRAMS) -> dict[str, Any]:
        """Compile programs and return their JSON-serialisable figures.

        Args:
            programs: names among `PROGRAMS`.

        Raises:
            UserError: if a program is unknown, or the configuration does not fit the mesh.
        """
        if unknown := [name for name in programs if name not in PROGRAMS]:
            raise UserError(f"--programs: {unknown[0]!r} must be one of {', '.join(PROGRAMS)}")
        if self.config.model.layout in LANGUAGE_MODELS and [*programs] != ["train_step"]:
            raise UserError("--programs: a language model has one program; pass train_step alone")
        if self.config.decode.weights != "stored" and [*programs] != ["train_step"]:
            raise UserError(
                f"Decode.weights='{self.config.decode.weights}' must be 'stored' here: programs "
                "are compiled for the stored weights"
            )
        return {
            "chip": self.devices[0].device_kind,
            "chips": len(self.devices),
            "mesh": dict(self.mesh.shape),
            "programs": {name: self._describe(name) for name in programs},
        }

    def _describe(self, name: str) -> dict[str, Any]:
        chip = self.chip
        lower: Callable[[], Any] = getattr(self, f"_lower_{name}")
        with jax.set_mesh(self.mesh):
            lowered = lower()
            try:
                compiled = lowered.compile()
            except jax.errors.JaxRuntimeError as error:
                return _does_not_fit(error)
        is_tpu = self.devices[0].platform == "tpu"
        used_bytes = _bytes(compiled.memory_analysis(), is_tpu=is_tpu)
        text = compiled.as_text()  # megabytes
        facts = _facts(compiled.cost_analysis(), text, chip)
        facts["collectives"] = self._collectives(text)
        facts["overlapped"] = list(map(dataclasses.asdict, find_overlaps(text)))
        figures = {"fits": True, "bytes": used_bytes, **facts}
        if chip:
            figures["bytes"]["of_chip"] = chip.memory
            excess = figures["bytes"]["peak"] - chip.memory
            if excess > 0 and not is_tpu:  # libtpu reports it, XLA for GPUs does not
                figures["bytes"]["over"], figures["fits"] = excess, False
            seconds = figures["cycles"] / chip.clock if figures["cycles"] and chip.clock else None
            figures["seconds"] = seconds
            if name == "train_step":
                flops = count_update_flops(self.config, self.learner) / len(self.devices)
                figures["model_flops"] = flops
                used = flops / (seconds * chip.peak_flops) if seconds else None
                figures["model_flops_utilization"] = used
        return figures

    def _collectives(self, program: str) -> list[dict[str, Any]]:
        slices = len(slices_of(self.devices))
        collectives = find_collectives(program, dict(self.mesh.shape), slices)
        return [dataclasses.asdict(collective) for collective in collectives]

    def fits(self) -> bool:
        """Return whether training accepts the settings and its memory fits the chips."""
        grouped = any(method.row_groups() > 1 for method in self.config.methods)
        if grouped and self._process_rows.empty_rows(self.config.data.rows):
            return False  # training refuses it
        try:
            return bool(self._describe("train_step")["fits"])
        except UserError:  # a method refuses them, e.g. rows that its groups do not divide
            return False

    def _lower_train_step(self) -> Any:
        learner, mesh = self.learner, self.mesh
        state = self._state
        return jax.jit(
            functools.partial(train_step, learner),
            donate_argnums=0,
            out_shardings=(shardings_of(state), replicated(mesh)),
        ).lower(state, self._batch())

    def _lower_prefill(self) -> Any:
        inputs = self._state.params, self._sources()
        shardings = jax.tree.map(self._state_sharding, jax.eval_shape(self._prefill, *inputs))
        return jax.jit(self._prefill, out_shardings=shardings).lower(*inputs)

    def _lower_decode_step(self) -> Any:
        cache = jax.eval_shape(self._prefill, self._state.params, self._sources())
        cache = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._state_sharding(a)),
            cache,
        )

        def step(params: Any, tokens: Any, cache: Any) -> Any:
            return self.learner.model.apply({"params": params}, tokens, cache, method="step")

        tokens = self._row_shape(jnp.int32, self.config.decode.beam_size)
        return jax.jit(step, donate_argnums=2).lower(self._state.params, tokens, cache)

    def _lower_search(self) -> Any:
        decode = self.config.decode
        if decode.method == "sample" or decode.source_contrast or decode.language_contrast:
            raise UserError(
                "--programs: search can be compiled for Decode.method 'greedy' and 'beam' without "
                "contrast only; omit these programs, or change Decode"
            )
        request = Request(
            prefix=self._row_shape(jnp.int32, self._converter.instruction.target_extra),
            max_length=self._row_shape(jnp.int32),
            active=self._row_shape(jnp.bool),
            max_steps=self._steps,
            allow_unk=decode.allow_unk,
        )
        return search_batch.lower(
            self._state.params,
            self._sources(),
            request,
            model=self.learner.model,
            search=make_search(decode),
        )

    def _prefill(self, params: Any, batch: Any) -> Any:
        return self.learner.model.apply(
            {"params": params},
            batch,
            beam=self.config.decode.beam_size,
            max_steps=self._steps,
            method="prefill",
        )

    @property
    def _steps(self) -> int:
        """Maximum number of generated tokens, with eos."""
        decode = self.config.decode
        return length_limit(decode, max(decode.buckets)) + 1

    def _state_sharding(self, array: Any) -> NamedSharding:
        return NamedSharding(self.mesh, decoding_state_spec(len(array.shape)))

    def _row_shape(self, dtype: Any, *trailing: int) -> Any:
        shape = (self._decoded_rows, *trailing)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self.mesh))

    @functools.cached_property
    def _state(self) -> TrainState:
        """Shapes and shardings of the train state; the number of rows does not matter."""
        batch = self._converter.batch(_NO_PAIRS, 1)
        return abstract_state(make_init(self.learner, self._shapes(batch, ()), 0), self.mesh)

    def _sources(self) -> dict[str, Any]:
        """Shapes of the static roles in translation: one sentence per row, the largest bucket."""
        bucket = max(self.config.decode.buckets)
        converter = dataclasses.replace(self._converter, lengths=Lengths(bucket, bucket))
        return self._shapes(converter.static_batch(_NO_PAIRS, self._decoded_rows), ())

    @property
    def _decoded_rows(self) -> int:
        """Rows of a translation batch, rounded up to the same number on each device."""
        shards = batch_shards(self.mesh)
        return -(-self.config.decode.batch // shards) * shards

    def _batch(self) -> dict[str, Any]:
        """Shapes of an update's micro-batches."""
        rows = self._process_rows.count(self.config.data.rows)
        batch = self._converter.batch(_NO_PAIRS, rows)
        return self._shapes(batch, (self.config.optimizer.accumulate,))

    @property
    def _process_rows(self) -> ProcessRows:
        """The rows of a micro-batch, as if one process read all of them."""
        shards = batch_shards(self.mesh)
        return ProcessRows(tuple(range(shards)), shards)

    def _shapes(self, batch: Batch, leading: tuple[int, ...]) -> dict[str, Any]:
        sharding = batch_sharding(self.mesh, len(leading))
        return {
            name: jax.ShapeDtypeStruct((*leading, *array.shape), array.dtype, sharding=sharding)
            for name, array in batch.items()
            if name != TASK
        }

    @functools.cached_property
    def _converter(self) -> Converter:
        layout, config = self.learner.model.layout, self.config
        return make_converter(_NO_VOCABULARY, layout, config.data, BatchExtras.of(config))


def memory_remedies(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield cumulative changes that reduce a training step's memory, the cheapest first.

    Yields:
        The changed settings as flags of a shell command, and the changed configuration.
    """
    optimizer, flags = config.optimizer, []
    levels = get_args(Remat)
    for level in levels[levels.index(config.model.remat) + 1 :]:
        value = f"\"'{level}'\"" if isinstance(level, str) else level
        flags = [f"--gin.Model.remat={value}"]
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, remat=level))
        yield " ".join(flags), config
    if config.mesh.fsdp == 1:
        config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, fsdp=-1))
        flags.append("--gin.Mesh.fsdp=-1")
        yield " ".join(flags), config
    rows, accumulate = config.data.rows, optimizer.accumulate
    for _ in range(3):
        if rows % 2:
            return
        rows, accumulate = rows // 2, accumulate * 2
        config = dataclasses.replace(
            config,
            data=dataclasses.replace(config.data, rows=rows),
            optimizer=dataclasses.replace(optimizer, accumulate=accumulate),
        )
        batch_flags = [f"--gin.Data.rows={rows}", f"--gin.Optimizer.accumulate={accumulate}"]
        yield " ".join([*flags, *batch_flags]), config


def _facts(costs: Any, text: str, chip: Chip | None) -> dict[str, Any]:
    # XLA's totals count the body of a loop once.
    cycles = estimate_cycles(text)
    share = cycles.executed / cycles.counted_once if cycles.counted_once else 1.0
    kernels = _kernel_cycles(cycles.kernels, chip)
    return {
        "flops": costs["flops"] * share if costs else None,
        "bytes_accessed": costs["bytes accessed"] * share if costs else None,
        "cycles": cycles.executed + kernels or None,
        "kernels": {**cycles.kernels, "cycles": kernels},
        "random_bits_share": cycles.random / cycles.executed if cycles.executed else None,
        "without_estimate": cycles.without_cycles if cycles.executed else None,
    }


def _bytes(memory: Any, *, is_tpu: bool) -> dict[str, int]:
    """Return the memory of a program on one device in bytes, by purpose, and the peak.

    Args:
        memory: a program's `memory_analysis`.
        is_tpu: libtpu's temporaries count buffers that share memory over time separately; the live
            buffers at the peak are counted instead, if stated.
    """
    by_purpose = {
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes - memory.alias_size_in_bytes,
    }
    live_at_peak = memory.peak_memory_in_bytes - sum(by_purpose.values())
    by_purpose["temporaries"] = (
        live_at_peak if is_tpu and live_at_peak > 0 else memory.temp_size_in_bytes
    )
    by_purpose["program"] = memory.generated_code_size_in_bytes
    return {**by_purpose, "peak": sum(by_purpose.values())}


def _kernel_cycles(stated: dict[str, int], chip: Chip | None) -> int:
    """Return the cycles of our own kernels, without overlap of compute and memory access."""
    computing, moved = (stated.get(name, 0) for name in KERNEL_METADATA)
    waiting = moved * chip.clock / chip.bandwidth if chip and chip.bandwidth else 0
    return computing + round(waiting)


def _does_not_fit(error: Exception) -> dict[str, Any]:
    """Return by how much the memory is exceeded; re-raise other errors."""
    match = _TOO_LARGE.search(str(error))
    if not match:
        raise error
    needed = float(match[1]) * _UNITS[match[2].upper()]
    present = float(match[3]) * _UNITS[match[4].upper()]
    return {
        "fits": False,
        "bytes": {"peak": int(needed), "of_chip": int(present), "over": int(needed - present)},
    }
