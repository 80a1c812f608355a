"""Scores as the papers' released scripts compute them, to compare with published tables.

The scripts give sacreBLEU the hypotheses as references and the references as hypotheses; score
against references that went through SentencePiece and back (`<<unk>>` where a character has no
piece); and average in ways of their own (`paper_groups`). None of this is how a translation should
be scored: these numbers stand beside the correct ones and are labelled. Graformer's script leaves
both in their places, and counts Moses' tokens. Of IWSLT17 the language-specific layers paper
compares detokenized hypotheses with tokenized references, by its authors' own erratum.

Not reproduced: fairseq's `spm_encode.py` drops empty lines, which misaligns the rest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.metrics import missing_tokenizer_note
from mnmt_jax.evaluation.moses import Moses
from mnmt_jax.evaluation.published_averages import TABLES
from mnmt_jax.evaluation.spbleu import FloresTokenizer, missing_model_note
from mnmt_jax.vocabulary.language_codes import canonical_code_or_input
from mnmt_jax.vocabulary.languages import (
    EC40_LANGUAGES,
    IWSLT17_LANGUAGES,
    MITRE_LANGUAGES,
    NEWSCRAWL_LANGUAGES,
    OPUS100_LANGUAGES,
    TED19_LANGUAGES,
    Direction,
    get_language,
)
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_UNKNOWN = re.compile(" ?\u2047 ?")  # how SentencePiece writes <unk>

# Languages that the authors' scripts compute a metric for, where not all.
_EC40_COMET = frozenset(EC40_LANGUAGES) - set("mt ti lb oc ast kab".split())
_EC40_OFF_TARGET = frozenset(
    "en bg da es uk hi ro de cs pt nl mr ur sv gu ar fr ru it pl he kn bn be mt am is sd".split()
)
_OPUS_BERT_SCORE = frozenset(OPUS100_LANGUAGES) - set(
    "am as eo fy gd ha ig km ku ky li mt or ps rw se si th tk ug wa xh yi zu fa".split()
)
# Languages whose BLEU is sacreBLEU's own also where others' is of Moses' tokens.
_OWN_TOKENS = ("hi", "ja", "zh")
_OPUS_COMET = frozenset(OPUS100_LANGUAGES) - set("ig li mt oc rw se sh tg tk tt wa zu".split())


@dataclasses.dataclass(frozen=True)
class Procedure:
    """How one of the papers' benchmarks was scored.

    Attributes:
        name: of the benchmark.
        languages: of its models, by which it is recognised.
        spbleu: BLEU over Flores-200's pieces; else over the target language's words.
        swapped: hypotheses and references exchanged in BLEU and chrF++; else BLEU alone, with both
            in their places.
        detokenize: Moses' detokenizer on sources, hypotheses and references first.
        detokenize_references: False leaves references as they are in the corpus files.
        tokenize: BLEU over Moses' tokens, but for hi, ja and zh.
        longest: pairs with a sentence of more tokens (tag and eos counted) were not scored; 0
            scores all.
        own_bert_models: as in `BertScore`.
        measured: languages a metric was computed for, where not all.
    """

    name: str
    languages: tuple[str, ...]
    spbleu: bool
    swapped: bool = True
    detokenize: bool = False
    detokenize_references: bool = True
    tokenize: bool = False
    longest: int = 0
    own_bert_models: bool = True
    measured: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """Says what readers of the numbers must know."""
        swapped = "hypotheses and references swapped in BLEU and chrF++"
        tokens = f"BLEU over Moses' tokens, to {', '.join(_OWN_TOKENS)} sacreBLEU's own"
        in_place = tokens if self.tokenize else "BLEU with both in their places"
        parts = [f"as published: {swapped if self.swapped else in_place}"]
        parts.append("references through SentencePiece and back")
        if self.detokenize and self.detokenize_references:
            parts.append("Moses' detokenizer first")
        elif self.detokenize:
            parts.append(
                "Moses' detokenizer on hypotheses and not on references, an error by the authors' "
                "erratum"
            )
        if self.longest:
            parts.append(f"pairs of more than {self.longest} tokens left out")
        zeros = (
            "count"
            if self.name in ("mitre", "ted30", "iwslt17")
            else "are left out of en →, → en, zero and avg"
        )
        return "; ".join([*parts, f"values of exactly zero {zeros}"])

    def table(self, metric: str, values: Mapping[Direction, float]) -> dict[str, dict[str, Any]]:
        """Averages a metric as the paper's tables do, ready for JSON.

        Args:
            metric: key of the scores of `PaperScorer.scores`.
            values: of the evaluated directions.
        """
        table = TABLES[self.name](values, self.measured.get(metric))
        return {label: dataclasses.asdict(average) for label, average in table.items()}


PROCEDURES: Mapping[str, Procedure] = {
    item.name: item
    for item in (
        Procedure("mitre", MITRE_LANGUAGES, spbleu=True),
        Procedure(
            "ec40",
            EC40_LANGUAGES,
            spbleu=True,
            detokenize=True,
            measured={"comet": _EC40_COMET, "off_target": _EC40_OFF_TARGET},
        ),
        Procedure("ted19", TED19_LANGUAGES, spbleu=False, detokenize=True),
        Procedure(
            "ted30",
            NEWSCRAWL_LANGUAGES,
            spbleu=False,
            swapped=False,
            detokenize=True,
            tokenize=True,
        ),
        Procedure(
            "iwslt17",
            IWSLT17_LANGUAGES,
            spbleu=False,
            swapped=False,
            detokenize=True,
            detokenize_references=False,
        ),
        Procedure(
            "opus100",
            OPUS100_LANGUAGES,
            spbleu=False,
            longest=128,
            own_bert_models=False,
            measured={"bert_score": _OPUS_BERT_SCORE, "comet": _OPUS_COMET},
        ),
    )
}
"""The published procedures by name (registers.md 7.4-7.7, two_stage.md 7.2-7.8, graft.md 6,
language_layers.md 6)."""


def choose_procedure(name: str, languages: Sequence[str]) -> Procedure:
    """Returns the procedure of a name, or with "auto" the one of a model's languages.

    Raises:
        UserError: if the name is unknown or no benchmark has these languages.
    """
    if name in PROCEDURES:
        return PROCEDURES[name]
    if name != "auto":
        raise UserError(f"--paper_compatible={name} must be one of {', '.join(PROCEDURES)}")
    for procedure in PROCEDURES.values():
        if set(procedure.languages) == set(map(canonical_code_or_input, languages)):
            return procedure
    raise UserError(
        f"--paper_compatible: no paper has a model of these {len(languages)} languages; name the "
        f"procedure: {', '.join(PROCEDURES)}"
    )


@dataclasses.dataclass(frozen=True)
class PaperTexts:
    """One direction's texts as the scripts score them.

    Attributes:
        sources: what was translated.
        hypotheses: output texts.
        references: what they should be.
    """

    sources: list[str]
    hypotheses: list[str]
    references: list[str]


class PaperScorer:
    """Scores directions by a published procedure.

    Args:
        procedure: of the benchmark.
        vocabulary: of the model; references pass through it.
        tokenizer: Flores-200's; None leaves spBLEU out.

    Raises:
        UserError: if the procedure needs a package that is missing.
    """

    def __init__(
        self, procedure: Procedure, vocabulary: Vocabulary, tokenizer: FloresTokenizer | None
    ) -> None:
        self.procedure = procedure
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._moses = Moses() if procedure.detokenize or procedure.tokenize else None

    def texts(
        self,
        direction: Direction,
        sources: Sequence[str],
        hypotheses: Sequence[str],
        references: Sequence[str],
    ) -> PaperTexts:
        """Prepares the texts of a direction: selects, passes through SentencePiece, detokenizes."""
        kept = PaperTexts([], [], [])
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True):
            encode = self._vocabulary.encode
            pieces = [encode(*side) for side in zip((source, reference), direction, strict=True)]
            # A source has a tag and eos besides its pieces, a target has eos.
            longest = self.procedure.longest
            if longest and max(len(pieces[0]) + 2, len(pieces[1]) + 1) > longest:
                continue
            source_lang, target_lang = direction
            kept.sources.append(self._detokenize(self._text(pieces[0]), source_lang))
            output = _UNKNOWN.sub("<unk>", hypothesis)
            kept.hypotheses.append(self._detokenize(output, target_lang))
            reference = self._text(pieces[1])
            if self.procedure.detokenize_references:
                reference = self._detokenize(reference, target_lang)
            kept.references.append(reference)
        return kept

    def scores(self, direction: Direction, texts: PaperTexts) -> dict[str, float]:
        """Returns the scores, to two decimals as the scripts print them.

        Args:
            direction: source and target.
            texts: from `texts`.

        Returns:
            `spbleu` or `bleu` (absent if its tokenizer is), and `chrf` where they compute it.
        """
        if not texts.references:
            return {}
        if not self.procedure.swapped:
            return self._scores_in_place(direction, texts)
        found = {}
        swapped = (texts.references, [texts.hypotheses])  # sic
        if self.procedure.spbleu:
            if self._tokenizer is not None:
                columns = [
                    [self._tokenizer(text) for text in column]
                    for column in (texts.references, texts.hypotheses)
                ]
                bleu = BLEU(tokenize="none", force=True)
                found["spbleu"] = bleu.corpus_score(columns[0], [columns[1]]).score
        elif not self.note(direction):
            bleu = BLEU(tokenize=get_language(direction[1]).sacrebleu_tokenizer, force=True)
            found["bleu"] = bleu.corpus_score(*swapped).score
        found["chrf"] = CHRF(word_order=2).corpus_score(*swapped).score
        return {name: round_as_published(value) for name, value in found.items()}

    def note(self, direction: Direction) -> str:
        """Says why BLEU is left out of a direction's scores; "" if it is not."""
        if self.procedure.spbleu:
            return "" if self._tokenizer is not None else missing_model_note()
        if self.procedure.tokenize and direction[1] not in _OWN_TOKENS:
            return ""
        return missing_tokenizer_note(get_language(direction[1]).sacrebleu_tokenizer)

    def _scores_in_place(self, direction: Direction, texts: PaperTexts) -> dict[str, float]:
        """Returns BLEU with hypotheses and references in their places."""
        if self.note(direction):
            return {}
        target, hypotheses, references = direction[1], texts.hypotheses, texts.references
        bleu = BLEU(tokenize=get_language(target).sacrebleu_tokenizer, force=True)
        if self.procedure.tokenize and target not in _OWN_TOKENS and self._moses is not None:
            tokenize = self._moses.tokenize
            hypotheses = [tokenize(text, target) for text in hypotheses]
            references = [tokenize(text, target) for text in references]
            bleu = BLEU(tokenize="none", force=True)
        return {"bleu": round_as_published(bleu.corpus_score(hypotheses, [references]).score)}

    def _text(self, ids: Sequence[int]) -> str:
        """Joins pieces as fairseq does in its "T-" lines, with an escaped <unk>."""
        unknown = self._vocabulary.unk_id
        pieces = self._vocabulary.named_pieces
        joined = "".join("<<unk>>" if i == unknown else pieces[i - unknown - 1] for i in ids)
        return joined.replace(" ", "").replace("\u2581", " ").strip()

    def _detokenize(self, text: str, code: str) -> str:
        if self._moses is None or not self.procedure.detokenize:
            return text
        return self._moses.detokenize(text, code)


def round_as_published(value: float) -> float:
    """Rounds as the scripts do: printed with four decimals, read, rounded to two."""
    return round(float(f"{value:.4f}"), 2)
