"""Embedded corpus: CLDR phrases in any set of languages, generated from a seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import babel

from mnmt_jax.data.cldr.inventory import Inventory, load_inventory, renderer
from mnmt_jax.data.cldr.renderer import Meaning
from mnmt_jax.data.cldr.sampler import SPLITS, Sampler, missing_phrase_groups, split_of
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_codes import Direction, canonical_codes
from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES

# Consecutive repeated draws after which a held-out split counts as exhausted.
_PATIENCE = 20_000


class CldrCorpus:
    """Generator of a multi-parallel corpus.

    A meaning belongs to one split, independent of language, direction and seed. So no test sentence
    in any language is ever a training sentence. Validation and test meanings are distinct and the
    same for all directions. Training meanings differ between language pairs, are shared by both
    directions of a pair, and may repeat, as in collected corpora.

    Args:
        languages: codes, at least one.
        seed: seed of the choice of meanings.
        inventory: "small" or "large".

    Raises:
        UserError: if a language is unknown, repeated, or has no or too few CLDR entries, or the
            inventory is unknown.
    """

    def __init__(
        self, languages: Iterable[str], seed: int = 0, *, inventory: str = "small"
    ) -> None:
        self.languages: tuple[str, ...] = canonical_codes(languages)
        if not self.languages:
            raise UserError("languages '': name at least one")
        self.seed = int(seed)
        self.inventory: Inventory = load_inventory(inventory, self.languages)
        if missing := missing_phrase_groups(self.inventory):
            raise UserError(
                f"languages {' '.join(self.languages)}: CLDR has no {' and no '.join(missing)} in "
                "all of them; remove the language with the least data"
            )

    def iter_meanings(self, split: str, direction: Direction | None = None) -> Iterator[Meaning]:
        """Yield meanings of a split: endless for train, else until no new ones are found.

        Args:
            split: "train", "validation" or "test".
            direction: for the training split, whose meanings depend on the pair of languages; None
                for the meanings that `sentences` renders.
        """
        if split not in SPLITS:
            raise UserError(f"split {split!r}: must be one of {' '.join(SPLITS)}")
        stream = "-".join(sorted(direction)) if direction and split == "train" else ""
        sampler = Sampler(self.inventory, f"{self.seed}/{self.inventory.name}/{split}/{stream}")
        seen: set[Meaning] = set()
        repeated = 0
        while repeated < _PATIENCE:
            meaning = sampler.draw()
            if split_of(meaning) != split:
                continue
            if split != "train":
                repeated += 1
                if meaning in seen:
                    continue
                seen.add(meaning)
                repeated = 0
            yield meaning

    def meanings(self, split: str, n: int, direction: Direction | None = None) -> list[Meaning]:
        """Return the first `n` meanings of a split.

        Raises:
            UserError: if the split has fewer distinct meanings.
        """
        return list(self._first_meanings(split, n, direction))

    def _first_meanings(
        self, split: str, n: int, direction: Direction | None = None
    ) -> Iterator[Meaning]:
        count = 0
        for meaning in itertools.islice(self.iter_meanings(split, direction), n):
            count += 1
            yield meaning
        if count < n:
            raise UserError(
                f"split {split!r} of the {self.inventory.name} inventory has {count} distinct "
                f"meanings, not {n}: ask for fewer, or take inventory 'large'"
            )

    def render(self, meaning: Meaning, language: str) -> str:
        """Render a meaning in any language, even one outside this corpus."""
        return renderer(language).render(meaning)

    def renderings(self, meaning: Meaning) -> dict[str, str]:
        """Render a meaning in the languages of MITRE and this corpus, for off-target detection."""
        codes = dict.fromkeys((*self.languages, *MITRE_LANGUAGES))
        return {code: renderer(code).render(meaning) for code in codes}

    def iter_sentences(self, split: str, n: int) -> Iterator[dict[str, str]]:
        """Yield `n` meanings of a split, each as text by language."""
        renderers = {code: renderer(code).render for code in self.languages}
        for meaning in self._first_meanings(split, n):
            yield {code: render(meaning) for code, render in renderers.items()}

    def sentences(self, split: str, n: int) -> list[dict[str, str]]:
        """Return `n` meanings of a split, each as text by language."""
        return list(self.iter_sentences(split, n))

    def iter_pairs(self, split: str, direction: Direction, n: int) -> Iterator[tuple[str, str]]:
        """Yield `n` sentence pairs of a direction.

        In validation and test, line i has the same meaning in all directions and in `sentences`.

        Args:
            split: "train", "validation" or "test".
            direction: source and target language, both in this corpus.
            n: number of pairs; a longer list starts with the shorter one.

        Raises:
            UserError: if a language is not in this corpus, or the split has too few meanings.
        """
        for code in direction:
            if code not in self.languages:
                raise UserError(
                    f"direction {'-'.join(direction)}: {code!r} is not among the corpus's "
                    f"languages {' '.join(self.languages)}"
                )
        return self._render_pairs(split, direction, n)

    def _render_pairs(self, split: str, direction: Direction, n: int) -> Iterator[tuple[str, str]]:
        source, target = (renderer(code).render for code in direction)
        for meaning in self._first_meanings(split, n, direction):
            yield source(meaning), target(meaning)

    def pairs(self, split: str, direction: Direction, n: int) -> list[tuple[str, str]]:
        """Return `n` sentence pairs of a direction; see `iter_pairs`."""
        return list(self.iter_pairs(split, direction, n))

    def describe(self) -> dict[str, object]:
        """Return the facts that determine the texts: seed, inventory sizes, versions."""
        return {
            "corpus": "cldr",
            "languages": list(self.languages),
            "seed": self.seed,
            "inventory": self.inventory.name,
            "atoms": {
                **{kind: len(codes) for kind, codes in self.inventory.names.items()},
                "unit": len(self.inventory.units),
                "per_unit": len(self.inventory.per_units),
            },
            "missing_phrases": sorted(self.inventory.missing),
            "babel": babel.__version__,
        }
