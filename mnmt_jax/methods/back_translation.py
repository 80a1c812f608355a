"""Online back-translation: each update also trains on the model's translations of its targets.

For a pair (x, y in t), a language r other than t is drawn and y is translated into r by greedy
search with the current parameters. The pair (translation, y) is trained on beside the real one.

Source: Zhang, Williams, Titov, Sennrich 2020 ("Improving Massively Multilingual Neural Machine
Translation and Zero-Shot Translation"), random online back-translation; their code (`zero`,
`main.py`: `backtranslate`; language-layers spec 5): r is uniform among the others, a translation is
at most as long as y, and the gradients of both batches go into one update. Here the update is the
mean over the target tokens of both, as over those of micro-batches.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from mnmt_jax.config.sections import Config
from mnmt_jax.data.instruction import Instruction, get_instruction
from mnmt_jax.design.fields import Range
from mnmt_jax.design.generated_batch import Batch, GeneratedBatch, GenerationModel
from mnmt_jax.design.layouts import (
    LANGUAGES,
    REGISTER,
    SOURCE,
    TARGET,
    TRIGGER,
    check_method_translates,
)
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import UserError, join_names
from mnmt_jax.methods._language_draws import draw
from mnmt_jax.methods._row_checks import check_one_pair_per_row
from mnmt_jax.model.learned_positions import check_lengths
from mnmt_jax.vocabulary.special_ids import EOS_ID

_KINDS = ("tokens", "positions", "segment_ids")


@dataclasses.dataclass(frozen=True)
class BackTranslation(Method, name="back_translation"):
    """Settings of online back-translation.

    Attributes:
        languages: codes of the languages whose target sentences are translated; () means all.
        pool: codes of the languages that they are translated into; one other than their own is
            drawn for each sentence; () means `languages`.
        share: probability that a pair is translated.
        max_length: maximum length of a translation in pieces, as a multiple of the sentence's.
        vocabulary: codes of all languages, in the order of the vocabulary's tags; () uses the
            vocabulary's.
    """

    languages: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()
    share: Annotated[float, Range(low=0, high=1, exclude_low=True)] = 1.0
    max_length: Annotated[float, Range(low=0.01, high=100)] = 1.0
    vocabulary: tuple[str, ...] = ()

    languages_field = "vocabulary"
    code_fields = ("languages", "pool")

    def check(self, config: Config, plan: Plan) -> None:
        """Check that the model translates, rows hold one pair each, and languages can be drawn.

        Raises:
            UserError: if not.
        """
        check_method_translates(self.name, plan.layout)
        check_one_pair_per_row(self.name, config.data)
        all_languages = self.known_languages()
        for field in ("languages", "pool"):
            codes = getattr(self, field)
            if unknown := [code for code in codes if code not in all_languages]:
                raise UserError(
                    f"BackTranslation.{field} names {join_names(unknown)}; the vocabulary has "
                    f"{join_names(all_languages)}"
                )
            if len(set(codes)) < len(codes):
                raise UserError(
                    f"BackTranslation.{field}={codes!r} names a language twice; name it once"
                )
        for code in self._translated:
            if not set(self._drawn) - {code}:
                raise UserError(
                    f"BackTranslation.pool={self._drawn!r} has no language to translate {code} "
                    "into; name another"
                )
        self._check_lengths(config, plan)

    def _check_lengths(self, config: Config, plan: Plan) -> None:
        """Check that sentences and translations have positions, as sources and as targets."""
        instruction = get_instruction(config.data.instruction)
        width = config.data.target_length - int(instruction.target_tag)
        generated = self._max_pieces(width) + 1
        source = max(width, generated) + instruction.source_extra - 1
        lengths = {SOURCE: source, TARGET: generated + int(instruction.target_tag)}
        if REGISTER in plan.layout.embedded_roles():
            lengths[REGISTER] = _registers(source, config.model.register_factor)
        settings = "BackTranslation.max_length or Data.target_length"
        check_lengths(config.model, lengths, settings)

    def _max_pieces(self, width: int) -> int:
        """Return the maximum number of pieces of a translation of a sentence of `width` tokens."""
        return max(1, math.floor(self.max_length * (width - 1)))

    def generated_batches(self, config: Config) -> tuple[GeneratedBatch, ...]:
        """Return the batch of translated pairs."""
        return (GeneratedBatch(self.name, functools.partial(self._make, config)),)

    @property
    def _translated(self) -> tuple[str, ...]:
        return self.languages or self.vocabulary

    @property
    def _drawn(self) -> tuple[str, ...]:
        return self.pool or self._translated

    def _make(self, config: Config, model: GenerationModel) -> Batch:
        """Generate the pairs; a row whose pair is not translated is empty."""
        rows = _Rows(
            get_instruction(config.data.instruction),
            model.layout.embedded_roles(),
            model.vocab_size - len(self.vocabulary),
            config.model.register_factor,
        )
        batch = model.batch
        sentences, lengths = rows.sentences(batch)
        target_languages = batch["target_lang"][:, 0]
        drawn, is_chosen = draw(model.rng, target_languages, self._indices(self._drawn), self.share)
        is_chosen &= (lengths > 1) & jnp.isin(target_languages, self._indices(self._translated))
        max_pieces = self._max_pieces(sentences.shape[1])
        limits = (lengths - 1).astype(jnp.float32) * jnp.float32(self.max_length)
        translations = model.greedy(
            rows.static(sentences, jnp.where(is_chosen, lengths, 0), (target_languages, drawn)),
            rows.prefix(drawn),
            jnp.where(is_chosen, jnp.clip(limits.astype(jnp.int32), 1, max_pieces), 0),
            max_pieces + 1,
        )
        counts = 1 + (jnp.cumsum(translations == EOS_ID, axis=1) == 0).sum(axis=1, dtype=jnp.int32)
        arrays = rows.static(
            translations, jnp.where(is_chosen, counts, 0), (drawn, target_languages)
        )
        names = [f"{TARGET}_{kind}" for kind in (*_KINDS, "labels")]
        return arrays | {name: jnp.where(is_chosen[:, None], batch[name], 0) for name in names}

    def _indices(self, codes: Sequence[str]) -> np.ndarray:
        return np.array([self.vocabulary.index(code) for code in codes], np.int32)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Lays out rows of one pair on the device, as `mnmt_jax.data.converter.Converter` does.

    Attributes:
        instruction: positions of the tags.
        roles: roles of the layout.
        first_tag: id of the first language's tag.
        register_factor: source tokens per register.
    """

    instruction: Instruction
    roles: tuple[str, ...]
    first_tag: int
    register_factor: float

    def sentences(self, batch: Batch) -> tuple[Array, Array]:
        """Return the target sentences with eos, [rows, n], and their lengths with eos."""
        skipped = int(self.instruction.target_tag)
        lengths = (batch[f"{TARGET}_segment_ids"] != 0).sum(axis=1, dtype=jnp.int32)
        return batch[f"{TARGET}_labels"][:, skipped:], jnp.maximum(lengths - skipped, 0)

    def prefix(self, languages: Int[Array, " rows"]) -> Int[Array, "rows prefix"]:
        """Return the first target input and the forced tokens for target languages."""
        tags = languages + self.first_tag
        forced = (tags,) if self.instruction.target_tag else ()
        return jnp.stack([self._triggers(tags), *forced], axis=1)

    def static(
        self,
        sentences: Int[Array, "rows n"],
        lengths: Int[Array, " rows"],
        languages: tuple[Int[Array, " rows"], Int[Array, " rows"]],
    ) -> dict[str, Array]:
        """Lay sentences out as the static roles.

        Args:
            sentences: sentences with eos; later tokens are ignored.
            lengths: with eos; 0 leaves a row empty.
            languages: languages of the sentences, and target languages.
        """
        present = lengths > 0
        source_tags, tags = (language + self.first_tag for language in languages)
        if self.instruction.source_tag:
            first_tags = source_tags if self.instruction.source_tag == "source" else tags
            sentences = jnp.concatenate([first_tags[:, None], sentences], axis=1)
            lengths = jnp.where(present, lengths + 1, 0)
        arrays = _span(SOURCE, sentences, lengths)
        if REGISTER in self.roles:
            count = jnp.ceil(lengths.astype(jnp.float32) / jnp.float32(self.register_factor))
            shape = len(tags), _registers(sentences.shape[1], self.register_factor)
            repeated = jnp.broadcast_to(tags[:, None], shape)
            arrays |= _span(REGISTER, repeated, count.astype(jnp.int32))
        if TRIGGER in self.roles:
            arrays |= _span(TRIGGER, self._triggers(tags)[:, None], present.astype(jnp.int32))
        named_languages = zip(LANGUAGES, languages, strict=True)
        return arrays | {
            name: jnp.where(present, language, -1)[:, None] for name, language in named_languages
        }

    def _triggers(self, tags: Array) -> Array:
        return tags if self.instruction.trigger == "tag" else jnp.full_like(tags, EOS_ID)


def _registers(source_length: int, factor: float) -> int:
    """Return the length of the register span of rows of one pair."""
    return math.floor(source_length / factor) + 1


def _span(role: str, tokens: Array, lengths: Array) -> dict[str, Array]:
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
    valid = positions < lengths[:, None]
    arrays = tokens, positions, jnp.ones_like(tokens)
    return {
        f"{role}_{kind}": jnp.where(valid, array, 0).astype(jnp.int32)
        for kind, array in zip(_KINDS, arrays, strict=True)
    }
