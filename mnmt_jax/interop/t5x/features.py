"""seqio feature converter that builds the spans of a layout in TensorFlow. Needs seqio, not t5x.

The spans equal those that `mnmt_jax.data.converter.Converter` builds with NumPy; tests compare the
two. Tags, eos, registers and the trigger are added to each example before packing, so seqio's
packing concatenates complete spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

from mnmt_jax.data.converter import Converter, Lengths
from mnmt_jax.data.instruction import Instruction
from mnmt_jax.design.layouts import REGISTER, SOURCE, TARGET, TRIGGER
from mnmt_jax.interop.t5x.feature_names import KINDS, LOSS_WEIGHTS, t5x_name

Example = Mapping[str, tf.Tensor]
_LABELS = f"{TARGET}_labels"
_LANGUAGES = ("source_lang", "target_lang")
_PACKING_SUFFIXES = ("_positions", "_segment_ids")  # suffixes that seqio's packing adds
_TASK_FEATURES = ("inputs", "targets", *_LANGUAGES)
# No branch depends on a tensor, so AutoGraph's conversion of each call is not needed.
_without_autograph = tf.autograph.experimental.do_not_convert


class RoleFeatureConverter(seqio.FeatureConverter):
    """Converter from the features of the project's tasks to the arrays of a layout.

    Task feature lengths are span lengths, including tags and eos: `inputs` is the source span,
    `targets` the target span. With `pack` (training), pairs that are too long are dropped and up to
    `max_segments` pairs share a row. Without it (inference), long examples are truncated, because
    each example needs an output.
    """

    PACKING_FEATURE_DTYPES: Mapping[str, Any] = {}  # built by `_convert_features` with the others

    def __init__(self, converter: Converter, **options: Any) -> None:
        """Store the converter and derive the model features.

        Args:
            converter: provides vocabulary, instruction, roles and register factor; of its lengths,
                only `max_segments` is used.
            options: options of `seqio.FeatureConverter`, e.g. `pack`.
        """
        spec = self.FeatureSpec(dtype=tf.int32)
        self._converter = converter
        self.TASK_FEATURES = dict.fromkeys(_TASK_FEATURES, spec)
        self.MODEL_FEATURES: Mapping[str, Any] = {}
        super().__init__(**options)
        static = [role for role in converter.roles if role != TARGET]
        self._views = converter.views if self.pack else ()
        view_spans = [view.prefix + role for view in self._views for role in static]
        self._spans = (*converter.roles, *view_spans)
        names = [t5x_name(f"{span}_{kind}") for span in self._spans for kind in KINDS]
        names += [t5x_name(_LABELS), LOSS_WEIGHTS, *_LANGUAGES]
        self.MODEL_FEATURES = dict.fromkeys(names, spec)

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the length of each array.

        Args:
            task_feature_lengths: `inputs` and `targets` are the span lengths.
        """
        widths = self._widths(task_feature_lengths)
        lengths = {
            t5x_name(f"{span}_{kind}"): widths[span] for span in self._spans for kind in KINDS
        }
        segments = dict.fromkeys(_LANGUAGES, self._max_segments)
        return lengths | segments | dict.fromkeys((t5x_name(_LABELS), LOSS_WEIGHTS), widths[TARGET])

    @property
    def _max_segments(self) -> int:
        return self._converter.lengths.max_segments if self.pack else 1

    def _widths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """Return the length of each span."""
        source, target = task_feature_lengths["inputs"], task_feature_lengths["targets"]
        lengths = Lengths(source, target, self._max_segments)
        widths = self._static_widths(lengths) | {TARGET: target}
        for view in self._views:
            view_widths = self._static_widths(self._converter.view_lengths(view, lengths))
            widths |= {view.prefix + role: width for role, width in view_widths.items()}
        return widths

    def _static_widths(self, lengths: Lengths) -> dict[str, int]:
        registers = lengths.registers(self._converter.register_factor)
        return {SOURCE: lengths.source, REGISTER: registers, TRIGGER: self._max_segments}

    def _convert_features(
        self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]
    ) -> tf.data.Dataset:
        widths = self._widths(task_feature_lengths)
        if self.pack:
            ds = ds.filter(_without_autograph(lambda example: self._fits(example, widths)))
        else:
            ds = ds.map(_without_autograph(lambda example: self._truncate(example, widths)))
        ds = ds.map(_without_autograph(self._lay_out), num_parallel_calls=tf.data.AUTOTUNE)
        lengths = {span: widths[span] for span in self._spans}
        lengths |= {_LABELS: widths[TARGET], **dict.fromkeys(_LANGUAGES, self._max_segments)}
        if self._max_segments > 1:
            packed = seqio.trim_and_pack_dataset(ds, lengths, self._use_custom_packing_ops)
            return packed.map(
                _without_autograph(self._name_arrays), num_parallel_calls=tf.data.AUTOTUNE
            )
        unpacked = ds.map(
            _without_autograph(_add_single_segment), num_parallel_calls=tf.data.AUTOTUNE
        )
        lengths |= {
            f"{key}{kind}": length for key, length in lengths.items() for kind in _PACKING_SUFFIXES
        }
        padded = seqio.utils.trim_and_pad_dataset(unpacked, lengths)
        return padded.map(
            _without_autograph(self._name_arrays), num_parallel_calls=tf.data.AUTOTUNE
        )

    def _fits(self, example: Example, widths: Mapping[str, int]) -> tf.Tensor:
        instruction = self._converter.instruction
        source = tf.size(example["inputs"]) + instruction.source_extra <= widths[SOURCE]
        target = tf.size(example["targets"]) + instruction.target_extra <= widths[TARGET]
        return tf.logical_and(source, target)

    def _truncate(self, example: Example, widths: Mapping[str, int]) -> dict[str, tf.Tensor]:
        instruction = self._converter.instruction
        return {
            **example,
            "inputs": example["inputs"][: widths[SOURCE] - instruction.source_extra],
            "targets": example["targets"][: widths[TARGET] - instruction.target_extra],
        }

    def _lay_out(self, example: Example) -> dict[str, tf.Tensor]:
        """Return an example's tokens per role, its labels, and its language indices plus 1.

        Packing treats 0 as padding, so language indices start from 1 until `_name_arrays`.
        """
        vocabulary, instruction = self._converter.vocabulary, self._converter.instruction
        all_tags = tf.constant(vocabulary.tag_ids, tf.int32)
        tags = {side: tf.gather(all_tags, example[f"{side}_lang"]) for side in (SOURCE, TARGET)}
        eos = tf.constant([vocabulary.eos_id], tf.int32)
        target = example["targets"]
        forced = [tags[TARGET]] if instruction.target_tag else []
        spans = self._static_spans(example["inputs"], tags, instruction)
        spans[TARGET] = tf.concat([self._trigger(tags[TARGET]), *forced, target], 0)
        sentences = {SOURCE: example["inputs"], TARGET: target}
        for view in self._views:
            instruction = self._converter.instruction_of(view)
            view_tags = dict.fromkeys(tags, tags[view.side])
            view_spans = self._static_spans(sentences[view.side], view_tags, instruction)
            spans |= {view.prefix + role: tokens for role, tokens in view_spans.items()}
        return {
            **{span: spans[span] for span in self._spans},
            _LABELS: tf.concat([*forced, target, eos], 0),
            **{name: example[name] + 1 for name in _LANGUAGES},
        }

    def _static_spans(
        self, pieces: tf.Tensor, tags: Example, instruction: Instruction
    ) -> dict[str, tf.Tensor]:
        """Return the static roles of a sentence; `tags` are those of its two languages."""
        eos = tf.constant([self._converter.vocabulary.eos_id], tf.int32)
        source_tag = [tags[instruction.source_tag]] if instruction.source_tag else []
        source = tf.concat([*source_tag, pieces, eos], 0)
        return {
            SOURCE: source,
            REGISTER: tf.repeat(tags[TARGET], self._registers(source)),
            TRIGGER: self._trigger(tags[TARGET]),
        }

    def _trigger(self, tag: tf.Tensor) -> tf.Tensor:
        if self._converter.instruction.trigger == "tag":
            return tag
        return tf.constant([self._converter.vocabulary.eos_id], tf.int32)

    def _registers(self, source: tf.Tensor) -> tf.Tensor:
        """Return the number of registers, computed in float32 as in `Converter.registers`."""
        factor = tf.constant(self._converter.register_factor, tf.float32)
        return tf.cast(tf.math.ceil(tf.cast(tf.size(source), tf.float32) / factor), tf.int32)

    def _name_arrays(self, packed: Example) -> dict[str, tf.Tensor]:
        """Return the arrays of a row under t5x's names."""
        arrays = {
            t5x_name(f"{span}_{kind}"): packed[span + suffix]
            for span in self._spans
            for kind, suffix in zip(KINDS, ("", *_PACKING_SUFFIXES), strict=True)
        }
        arrays[t5x_name(_LABELS)] = packed[_LABELS]
        arrays[LOSS_WEIGHTS] = tf.cast(packed[f"{TARGET}_segment_ids"] != 0, tf.int32)
        return arrays | {name: packed[name] - 1 for name in _LANGUAGES}


def _add_single_segment(spans: Example) -> dict[str, tf.Tensor]:
    """Add the positions and segment ids of a row that holds one example."""
    positions = {f"{key}_positions": tf.range(tf.size(tokens)) for key, tokens in spans.items()}
    segment_ids = {f"{key}_segment_ids": tf.ones_like(tokens) for key, tokens in spans.items()}
    return {**spans, **positions, **segment_ids}
