"""Translation through a pivot."""

import dataclasses

import pytest

from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding import translation_job as job_module
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.errors import UserError
from tests.unit.made_translator import LINES, made_translator

TEXTS = ["", *LINES, " \t", "two " * 30]
CONTRAST = {"source_contrast": 0.5, "language_contrast": 0.1, "contrast_languages": ("source",)}


@pytest.mark.parametrize("settings", [{}, CONTRAST, {"temperature": 1.0, "beam_size": 2}])
def test_pivot_translation_equals_two_translations(settings, monkeypatch):
    monkeypatch.setattr(job_module, "WINDOW_SIZE", 4)
    translator = made_translator(batch=1)  # whatever lengths there are, batches have as many rows
    first = translator.translate_nbest(TEXTS, source="de", target="en", **settings)
    between = [translation.text for translation in first]
    second = translator.translate_nbest(between, source="en", target="fr", **settings)
    actual = translator.translate_nbest(TEXTS, source="de", target="fr", pivot="en", **settings)
    assert len(set(between)) > 3 and len({t.text for t in second}) > 3
    stripped = [dataclasses.replace(b, truncated=False, limited=False) for b in second]
    assert stripped == [
        dataclasses.replace(one, truncated=False, limited=False, pivot=None) for one in actual
    ]
    for one, a, b in zip(actual, first, second, strict=True):
        assert one.pivot == (a.text if a.hypotheses else None)
        assert one.truncated == (a.truncated or b.truncated)
        assert one.limited == (a.limited or b.limited)
    assert actual[0] == actual[-2] == Translation() and actual[-1].truncated
    assert settings or any(a.limited != b.limited for a, b in zip(actual, second, strict=True))
    with pytest.warns(UserWarning, match="of more than 14 tokens"):
        texts = translator.translate(TEXTS, source="de", target="fr", pivot="en", **settings)
    assert texts == [translation.text for translation in actual]


def test_directions_with_the_pivot_are_translated_directly():
    translator = made_translator(source_contrast=0.5)
    sources, targets = ["en", "de", "de", "fr"], ["fr", "en", "fr", "de"]
    sides = {"source": sources, "target": targets}
    actual = translator.translate_nbest(LINES[:4], pivot="en", **sides)
    assert [translation.pivot is None for translation in actual] == [True, True, False, False]
    direct = translator.translate_nbest(LINES[:4], **sides)
    assert actual[:2] == direct[:2] and actual[2:] != direct[2:]


@pytest.mark.parametrize("settings", [{}, CONTRAST])
def test_finished_translations_do_not_change_results(settings, monkeypatch):
    """Nor do they change the number of rows, for any lengths of the pivot texts."""
    shapes = set()
    search = lines_module.search_continuously

    def record_shapes(inference_model, search_settings, admissions, rows):
        admissions = list(admissions)
        shapes.update((rows, *admission.batch["source_tokens"].shape) for admission in admissions)
        return search(inference_model, search_settings, admissions, rows)

    monkeypatch.setattr(lines_module, "search_continuously", record_shapes)
    translator = made_translator(batch=16)
    job = TranslationJob.create(translator, pivot="en", **settings)
    texts = [*LINES, "two " * 30, "two", "two two"]
    lines = list(job.number_lines(texts, source="de", target="fr"))
    complete = dict(job.as_completed(lines))
    assert len(complete) == 10
    all_shapes = set(shapes)
    for done in ({0, 3, 4}, set(range(1, 10)), set(range(9))):
        remaining = dict(job.as_completed(lines, done=done))
        assert remaining == {line: complete[line] for line in lines if line.number not in done}
    assert shapes == all_shapes and len(shapes) > 1


@pytest.mark.parametrize(
    ("pivot", "message"),
    [
        (
            "english",
            r"--pivot=english: the model has no such language; did you mean en\? it has en",
        ),
        ("", "--pivot=: the model has no such language"),
        (["en"], r"pivot=\['en'\]: must be a language code"),
    ],
)
def test_an_unknown_pivot_is_named(pivot, message):
    with pytest.raises(UserError, match=message):
        made_translator().stream(iter(()), source="de", target="fr", pivot=pivot)


def test_translation_settings_include_the_pivot():
    translator = made_translator()
    direct = TranslationJob.create(translator).provenance()
    assert direct == TranslationJob.create(translator, translator.config.decode).provenance()
    through = TranslationJob.create(translator, pivot="en").provenance()
    assert through == direct | {"pivot": "en"}
