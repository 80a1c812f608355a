"""Scoring procedures of the papers' released scripts, for comparison with published tables.

The scripts swap hypotheses and references in their calls of sacreBLEU. Their references are encoded
with SentencePiece and decoded (`<<unk>>` for a character without a piece). Their averages differ
from the usual ones, too (`published_averages`). This is not correct scoring: the numbers are
labelled and reported in addition to the correct ones.

Graformer's script does not swap and computes BLEU over Moses tokens. On IWSLT17 the
language-specific layers paper compares detokenized hypotheses with tokenized references, according
to its authors' erratum.

Not reproduced: fairseq's `spm_encode.py` drops empty lines, which misaligns the following lines.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.metrics import missing_tokenizer_note
from mnmt_jax.evaluation.moses import Moses
from mnmt_jax.evaluation.published_averages import TABLES
from mnmt_jax.evaluation.spbleu import FloresTokenizer, missing_model_note
from mnmt_jax.vocabulary.language_codes import Direction, canonical_code_or_input
from mnmt_jax.vocabulary.languages import (
    EC40_LANGUAGES,
    IWSLT17_LANGUAGES,
    MITRE_LANGUAGES,
    NEWSCRAWL_LANGUAGES,
    OPUS100_LANGUAGES,
    TED19_LANGUAGES,
    get_language,
)
from mnmt_jax.vocabulary.normalization import SPACE_MARK
from mnmt_jax.vocabulary.vocabulary import Vocabulary

_UNKNOWN_MARK = re.compile(" ?\u2047 ?")  # how SentencePiece writes <unk>

# Languages for which the authors' scripts compute a metric, if not for all.
_EC40_COMET = frozenset(EC40_LANGUAGES) - set("mt ti lb oc ast kab".split())
_EC40_OFF_TARGET = frozenset(
    "en bg da es uk hi ro de cs pt nl mr ur sv gu ar fr ru it pl he kn bn be mt am is sd".split()
)
_OPUS_BERT_SCORE = frozenset(OPUS100_LANGUAGES) - set(
    "am as eo fy gd ha ig km ku ky li mt or ps rw se si th tk ug wa xh yi zu fa".split()
)
# Languages with sacreBLEU's tokenizer where other languages have Moses tokens.
_SACREBLEU_TOKENIZED = ("hi", "ja", "zh")
_OPUS_COMET = frozenset(OPUS100_LANGUAGES) - set("ig li mt oc rw se sh tg tk tt wa zu".split())


@dataclasses.dataclass(frozen=True)
class Procedure:
    """Scoring procedure of one published benchmark.

    Attributes:
        name: name of the benchmark.
        languages: languages of its models; they identify the benchmark.
        spbleu: True for BLEU over the pieces of Flores-200, False for BLEU over words.
        swapped: True to swap hypotheses and references in BLEU and chrF++; False for BLEU alone,
            not swapped.
        detokenize: apply the Moses detokenizer to sources, hypotheses and references.
        detokenize_references: False leaves references as in the corpus files.
        tokenize: BLEU over Moses tokens, except for hi, ja and zh.
        max_length: maximal number of tokens of a sentence, tag and eos included; pairs with a
            longer sentence are not scored; 0 scores all.
        language_specific_bert_models: `language_specific_models` of `BertScore`.
        measured_languages: by metric, the languages that it was computed for, if not all.
    """

    name: str
    languages: tuple[str, ...]
    spbleu: bool
    swapped: bool = True
    detokenize: bool = False
    detokenize_references: bool = True
    tokenize: bool = False
    max_length: int = 0
    language_specific_bert_models: bool = True
    measured_languages: Mapping[str, Collection[str]] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """Description of the procedure for readers of the numbers."""
        swapped_remark = "hypotheses and references swapped in BLEU and chrF++"
        tokens_remark = (
            f"BLEU over Moses' tokens, to {', '.join(_SACREBLEU_TOKENIZED)} sacreBLEU's own"
        )
        unswapped_remark = tokens_remark if self.tokenize else "BLEU without swapping"
        remarks = [f"as published: {swapped_remark if self.swapped else unswapped_remark}"]
        remarks.append("references through SentencePiece and back")
        if self.detokenize and self.detokenize_references:
            remarks.append("Moses' detokenizer first")
        elif self.detokenize:
            remarks.append(
                "Moses' detokenizer on hypotheses but not on references, an error that the "
                "authors' erratum reports"
            )
        if self.max_length:
            remarks.append(f"pairs of more than {self.max_length} tokens left out")
        zeros = (
            "count"
            if self.name in ("mitre", "ted30", "iwslt17")
            else "are left out of en →, → en, zero and avg"
        )
        return "; ".join([*remarks, f"values of exactly zero {zeros}"])

    def table(self, metric: str, values: Mapping[Direction, float]) -> dict[str, dict[str, Any]]:
        """Average a metric as the paper's tables do; return JSON-serialisable averages by label.

        Args:
            metric: key in the result of `PaperScorer.scores`.
            values: the metric by direction, in codes of any form.
        """
        canonical = {_canonical(direction): value for direction, value in values.items()}
        average_table = TABLES[self.name]
        if metric in self.measured_languages:
            languages = self.measured_languages[metric]
            average_table = functools.partial(average_table, measured_languages=languages)
        table = average_table(canonical)
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
            measured_languages={"comet": _EC40_COMET, "off_target": _EC40_OFF_TARGET},
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
            max_length=128,
            language_specific_bert_models=False,
            measured_languages={"bert_score": _OPUS_BERT_SCORE, "comet": _OPUS_COMET},
        ),
    )
}
"""The published procedures by name (registers.md 7.4-7.7, two_stage.md 7.2-7.8, graft.md 6,
language_layers.md 6)."""


def choose_procedure(name: str, languages: Sequence[str]) -> Procedure:
    """Return a procedure by name, or with "auto" by the model's languages.

    Raises:
        UserError: if the name is unknown, or if no benchmark has these languages.
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


def _canonical(direction: Direction) -> Direction:
    """Return a direction in the codes of the procedures, which are canonical."""
    source, target = map(canonical_code_or_input, direction)
    return source, target


@dataclasses.dataclass(frozen=True)
class PaperTexts:
    """Texts of one direction, prepared as in the published scripts.

    Attributes:
        sources: source sentences.
        hypotheses: output texts.
        references: reference translations.
    """

    sources: list[str]
    hypotheses: list[str]
    references: list[str]


class PaperScorer:
    """Scorer of directions by a published procedure.

    Args:
        procedure: procedure of the benchmark.
        vocabulary: vocabulary of the model; references are encoded and decoded with it.
        tokenizer: tokenizer of Flores-200; None leaves spBLEU out.

    Raises:
        UserError: if the procedure needs a package that is not installed.
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
        """Select the sentence pairs of a direction, pass them through SentencePiece, detokenize."""
        prepared = PaperTexts([], [], [])
        source_lang, target_lang = _canonical(direction)
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True):
            encode = self._vocabulary.encode
            pieces = [encode(*side) for side in zip((source, reference), direction, strict=True)]
            # A source has a tag and eos besides its pieces, a target has only eos.
            longest = self.procedure.max_length
            if longest and max(len(pieces[0]) + 2, len(pieces[1]) + 1) > longest:
                continue
            prepared.sources.append(self._detokenize(self._join_pieces(pieces[0]), source_lang))
            output = _UNKNOWN_MARK.sub("<unk>", hypothesis)
            prepared.hypotheses.append(self._detokenize(output, target_lang))
            reference = self._join_pieces(pieces[1])
            if self.procedure.detokenize_references:
                reference = self._detokenize(reference, target_lang)
            prepared.references.append(reference)
        return prepared

    def scores(self, direction: Direction, texts: PaperTexts) -> dict[str, float]:
        """Return the scores with two decimals, as the scripts print them.

        Args:
            direction: source and target.
            texts: result of `texts`.

        Returns:
            `spbleu` or `bleu` (absent without its tokenizer), and `chrf` if the scripts compute it.
        """
        if not texts.references:
            return {}
        if not self.procedure.swapped:
            return self._unswapped_scores(direction, texts)
        scores = {}
        swapped = (texts.references, [texts.hypotheses])  # as in the scripts
        if self.procedure.spbleu:
            if self._tokenizer is not None:
                tokenized = [
                    [self._tokenizer(text) for text in column]
                    for column in (texts.references, texts.hypotheses)
                ]
                bleu = BLEU(tokenize="none", force=True)
                scores["spbleu"] = bleu.corpus_score(tokenized[0], [tokenized[1]]).score
        elif not self.note(direction):
            bleu = BLEU(tokenize=get_language(direction[1]).sacrebleu_tokenizer, force=True)
            scores["bleu"] = bleu.corpus_score(*swapped).score
        scores["chrf"] = CHRF(word_order=2).corpus_score(*swapped).score
        return {name: round_as_published(value) for name, value in scores.items()}

    def note(self, direction: Direction) -> str:
        """Return why BLEU is left out for a direction; "" if it is computed."""
        if self.procedure.spbleu:
            return "" if self._tokenizer is not None else missing_model_note()
        _, target = _canonical(direction)
        if self.procedure.tokenize and target not in _SACREBLEU_TOKENIZED:
            return ""
        return missing_tokenizer_note(get_language(target).sacrebleu_tokenizer)

    def _unswapped_scores(self, direction: Direction, texts: PaperTexts) -> dict[str, float]:
        """Return BLEU without swapping hypotheses and references."""
        if self.note(direction):
            return {}
        bleu, hypotheses, references = self.bleu_inputs(direction, texts)
        return {"bleu": round_as_published(bleu.corpus_score(hypotheses, [references]).score)}

    def bleu_inputs(
        self, direction: Direction, texts: PaperTexts
    ) -> tuple[BLEU, list[str], list[str]]:
        """Return the BLEU of a procedure that does not swap, its hypotheses and references.

        Args:
            direction: source and target.
            texts: result of `texts`.
        """
        _, target = _canonical(direction)
        hypotheses, references = texts.hypotheses, texts.references
        bleu = BLEU(tokenize=get_language(target).sacrebleu_tokenizer, force=True)
        if (
            self.procedure.tokenize
            and target not in _SACREBLEU_TOKENIZED
            and self._moses is not None
        ):
            tokenize = self._moses.tokenize
            hypotheses = [tokenize(text, target) for text in hypotheses]
            references = [tokenize(text, target) for text in references]
            bleu = BLEU(tokenize="none", force=True)
        return bleu, hypotheses, references

    def _join_pieces(self, ids: Sequence[int]) -> str:
        """Join pieces as in fairseq's "T-" lines, with an escaped <unk>."""
        unknown = self._vocabulary.unk_id
        pieces = self._vocabulary.named_pieces
        joined = "".join("<<unk>>" if i == unknown else pieces[i - unknown - 1] for i in ids)
        return joined.replace(" ", "").replace(SPACE_MARK, " ").strip()

    def _detokenize(self, text: str, code: str) -> str:
        if self._moses is None or not self.procedure.detokenize:
            return text
        return self._moses.detokenize(text, code)


def round_as_published(value: float) -> float:
    """Round to four decimals and then to two, as the scripts do by printing and reading."""
    return round(float(f"{value:.4f}"), 2)
