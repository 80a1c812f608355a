"""Exported models in CTranslate2 (extra `test`)."""

import ctranslate2
import numpy as np
import pytest

from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.interop.exporting import export_checkpoint
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import LINES, made_translator

BEAM, STEPS = 4, 20
SOURCE, TARGET = "en", "fr"
KINDS = {
    "pre": (("norm", "pre"),),
    "gelu": (("norm", "pre"), ("activation", "gelu"), ("embedding_scale", False)),
    "base": (("norm", "post"), ("positions", ("sinusoidal", 5000.0))),
    "widths": (("norm", "pre"), ("stage_mlp", (24, 40))),
}


def prompt(translator: Translator, line: str) -> tuple[list[str], list[str]]:
    """Return the source and the target prefix of the instruction, by name."""
    instruction = translator.inference_model.instruction
    tag = {"source": [f"__{SOURCE}__"], "target": [f"__{TARGET}__"], None: []}
    pieces = names(translator, translator.vocabulary.encode(line))
    starts = instruction.trigger == "tag"
    prefix = [f"__{TARGET}__"] * (starts + instruction.target_tag)
    return [*tag[instruction.source_tag], *pieces, "</s>"], prefix


def names(translator: Translator, ids) -> list[str]:
    """Return the names of ids in the exported vocabulary."""
    vocabulary = translator.vocabulary
    special = {vocabulary.eos_id: "</s>", vocabulary.unk_id: "<unk>"}
    tags = [f"__{code}__" for code in vocabulary.languages]
    every = [*vocabulary.named_pieces, *tags]
    return [special.get(i) or every[i - vocabulary.unk_id - 1] for i in ids]


@pytest.mark.parametrize(
    ("kind", "instruction"), [("pre", "5"), ("gelu", "register"), ("base", "2"), ("widths", "5")]
)
def test_ctranslate2_gives_the_same_translations_and_scores(kind, instruction, tmp_path):
    translator = made_translator(instruction, "encoder_decoder", KINDS[kind])
    run = write_made_run(tmp_path / "run", translator)
    export_checkpoint("ctranslate2", run, tmp_path / "ct2")
    ct2_model = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32")
    sources, prefixes = zip(*(prompt(translator, line) for line in LINES), strict=True)
    options = {"source": SOURCE, "target": TARGET, "length_penalty": 0.0, "max_length": STEPS}
    actual = translator.translate_nbest(LINES, beam_size=BEAM, **options)

    rows = [(number, h) for number, each in enumerate(actual) for h in each.hypotheses]
    scored = ct2_model.score_batch(
        [sources[number] for number, _ in rows],
        [[*prefixes[n], *names(translator, h.tokens[:-1])] for n, h in rows],
    )
    own = len(prefixes[0]) - (translator.inference_model.instruction.trigger == "tag")
    for (_, hypothesis), score in zip(rows, scored, strict=True):
        assert len(score.log_probs) == own + len(hypothesis.tokens)
        np.testing.assert_allclose(sum(score.log_probs[own:]), hypothesis.score, rtol=1e-4)

    searched = ct2_model.translate_batch(
        sources,
        target_prefix=prefixes,
        beam_size=1,
        max_decoding_length=STEPS + len(prefixes[0]),
        min_decoding_length=1 + own,  # no empty translation, as here
        disable_unk=True,
    )
    ours = translator.translate_nbest(LINES, beam_size=1, **options)
    for one, other in zip(ours, searched, strict=True):
        tokens = names(translator, one.hypotheses[0].tokens[:-1])
        assert other.hypotheses[0][own : own + STEPS] == tokens
    assert len({each.text for each in ours}) > 4


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("register", (), "CTranslate2 has no model like 'register', only encoder_decoder"),
        ("encoder_decoder", (("positions", ("learned", 32)),), "Model.positions"),
    ],
)
def test_models_unsupported_by_ctranslate2_are_one_error_line(layout, changes, message, tmp_path):
    run = write_made_run(tmp_path / "run", made_translator("5", layout, changes))
    with pytest.raises(UserError, match=message):
        export_checkpoint("ctranslate2", run, tmp_path / "ct2")
    assert not (tmp_path / "ct2").exists()
