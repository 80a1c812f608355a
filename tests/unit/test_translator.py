"""Text in, text out: order, blanks, lengths, languages, instructions, batches."""

import dataclasses

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Decode
from mnmt_jax.data.converter import Example, segments_from_rows
from mnmt_jax.data.instruction import INSTRUCTIONS
from mnmt_jax.decoding import continuous_batching
from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding.search_settings import initial_step_limit, length_limit
from mnmt_jax.decoding.translation import Translation
from mnmt_jax.decoding.translation_job import TranslationJob
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import UserError
from mnmt_jax.methods.language_layers import LanguageLayers
from tests.slow_search import slow_beam_search, without_token
from tests.unit.made_language_model import write_made_run
from tests.unit.made_text import LANGUAGES, vocabulary
from tests.unit.made_translator import (
    BUCKETS,
    LINES,
    assert_alike,
    forced_log_probs,
    made_translator,
)

SCORE_ATOL = 1e-5


def _slow(translator: Translator, line: str, beam: int, target: str) -> list:
    """Search with teacher forcing through the converter that training uses."""
    log_probs = forced_log_probs(translator, line, "en", target)

    return slow_beam_search(without_token(log_probs, vocabulary().unk_id), beam=beam, max_length=11)


@pytest.mark.parametrize("layout", ["register", "prefix_trigger"])
@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_decoding_and_training_make_equal_model_inputs(instruction: str, layout: str):
    translator = made_translator(instruction, layout)
    actual = translator.translate_nbest(LINES[:2], source="en", target="fr")
    for line, translation in zip(LINES[:2], actual, strict=True):
        expected = _slow(translator, line, 3, "fr")
        assert [list(h.tokens) for h in translation.hypotheses] == [t for _, t in expected]
        np.testing.assert_allclose(
            [h.score for h in translation.hypotheses], [s for s, _ in expected], atol=SCORE_ATOL
        )
        assert translation.text == vocabulary().decode(expected[0][1])


def test_language_layers_get_the_target_language_without_tags(tmp_path):
    """Trained with a tag in the source, decoded without (paper 002, Table 8)."""
    layers = LanguageLayers(LANGUAGES, ("en",), mlp=24)
    changes = (("methods", (layers,)),)
    tagged = made_translator("1", "encoder_decoder", changes)
    run = write_made_run(tmp_path / "run", tagged)
    omitted = Translator.load(run, bindings=["Data.instruction='none'"])
    spans = omitted.inference_model.converter(BUCKETS[-1])
    segments = segments_from_rows([[Example(np.array([5, 6]), np.array([7]), 0, 2)]])
    batch = spans.static_batch(segments, 1)
    assert batch["source_tokens"][0, :4].tolist() == [5, 6, vocabulary().eos_id, 0]
    assert batch["target_lang"].tolist() == [[2]]
    actual = {}
    for target in ("de", "fr"):
        actual[target] = omitted.translate_nbest(LINES[:2], source="en", target=target)
        for line, translation in zip(LINES[:2], actual[target], strict=True):
            expected = _slow(omitted, line, 3, target)
            assert [list(h.tokens) for h in translation.hypotheses] == [t for _, t in expected]
    texts = [[each.text for each in lines] for lines in actual.values()]
    assert texts[0] != texts[1]  # of one input, by the branches alone
    assert tagged.translate(LINES[:2], source="en", target="fr") != texts[1]


def test_order_blank_and_truncated_lines():
    long = " ".join(LINES)
    lines = ["", *LINES[:3], " \t", long, LINES[3], "\u3000"]
    actual = made_translator().translate_nbest(lines, source="en", target="de")
    blank = [not translation.hypotheses for translation in actual]
    assert blank == [True, False, False, False, True, False, False, True]
    assert [t.text for t, is_blank in zip(actual, blank, strict=True) if is_blank] == [""] * 3
    assert [translation.truncated for translation in actual] == [line == long for line in lines]
    cut = vocabulary().encode(long)[: BUCKETS[-1] - 2]
    (single,) = made_translator().translate_nbest(
        [vocabulary().decode(cut)], source="en", target="de"
    )
    assert_alike([actual[5]], [dataclasses.replace(single, truncated=True)])
    with pytest.warns(UserWarning, match="1 line .* tokens with tags truncated; split them, as"):
        texts = made_translator().translate(lines, source="en", target="de")
    assert texts == [translation.text for translation in actual]
    for line, translation in zip(lines, actual, strict=True):
        if line in LINES:
            one = made_translator().translate_nbest([line], source="en", target="de")
            assert_alike(one, [translation])


def test_truncated_output_is_marked():
    short = made_translator(max_length=2).translate_nbest(LINES, source="en", target="de")
    assert [t.limited for t in short] == [len(t.hypotheses[0].tokens) == 3 for t in short]
    assert any(t.limited for t in short)
    actual = made_translator(beam_size=1).translate_nbest(LINES, source="en", target="de")
    lengths = [len(translation.hypotheses[0].tokens) for translation in actual]
    assert [translation.limited for translation in actual] == [length == 12 for length in lengths]
    assert not Translation().limited


def test_a_string_is_not_accepted_as_a_list_of_lines():
    with pytest.raises(UserError, match=r"write \[text\]"):
        made_translator().translate(LINES[0], source="en", target="de")


SEARCHES = [{"beam_size": 5}, {"beam_size": 1}, {"temperature": 1.0}]


@pytest.mark.parametrize("search", SEARCHES, ids=["beam", "greedy", "sample"])
def test_a_line_does_not_depend_on_the_others(search):
    translator = made_translator(**search)
    together = translator.translate_nbest(LINES, source="en", target="de")
    assert len({translation.text for translation in together}) > 1
    for index in (0, 3, 6):
        others = [LINES[0][::-1]] * index
        mixed = translator.translate_nbest([*others, LINES[index]], source="en", target="de")
        assert_alike([mixed[index]], [together[index]])


def _recorded_shapes(monkeypatch):
    """Return a list to which searches add the bucket, sentences and rows of each admission."""
    shapes = []
    original_search = lines_module.search_continuously

    def record_shapes(inference_model, search, admissions, rows):
        admissions = list(admissions)
        for admission in admissions:
            shapes.append(
                (admission.batch["source_tokens"].shape[1], len(admission.request.active), rows)
            )
        return original_search(inference_model, search, admissions, rows)

    monkeypatch.setattr(lines_module, "search_continuously", record_shapes)
    return shapes


def test_the_batch_size_follows_the_number_of_lines(monkeypatch):
    """One row, four, and so on up to a full batch, by the number of lines in a bucket."""
    seen = _recorded_shapes(monkeypatch)
    translator = made_translator(batch=8, buckets=(9, 40), beam_size=1, max_length=2)
    for count in (1, 2, 4, 5, 8):
        translator.translate((LINES + LINES)[:count], source="en", target="de")
    assert seen == [(9, 1, 1), (9, 4, 4), (9, 4, 4), (9, 8, 8), (9, 8, 8)]
    seen.clear()
    longer = " ".join(LINES)
    lines = [longer, *LINES, *LINES[:2], "", longer]
    job = TranslationJob.create(translator)
    numbered = list(job.number_lines(lines, source="en", target="de"))
    actual = job.as_completed(numbered, done=range(6))
    assert {line.number for line, _ in actual} == {6, 7, 8, 9, 10, 11}
    # Nine lines are more than there are rows: two enter at a time. What is done is counted.
    assert seen == [(9, 2, 8), (9, 2, 8), (40, 4, 4)]


def test_small_models_search_in_smaller_batches_on_a_cpu(monkeypatch):
    """As many hypotheses as the limit, unless the model is large or lines fill several batches."""
    shapes = _recorded_shapes(monkeypatch)
    monkeypatch.setattr(continuous_batching, "_SMALL_BATCH", 7)
    translator = made_translator(batch=8, buckets=(9,), beam_size=3, max_length=2)
    lines = (LINES + LINES)[:8]
    actual = translator.translate_nbest(lines, source="en", target="de")
    assert shapes == [(9, 2, 2)] * 4
    shapes.clear()
    translator.translate([*lines, LINES[0]], source="en", target="de", beam_size=1)
    assert shapes == [(9, 2, 8)] * 5
    shapes.clear()
    monkeypatch.setattr(continuous_batching, "_SMALL_MODEL", 0)
    expected = translator.translate_nbest(lines, source="en", target="de")
    assert shapes == [(9, 8, 8)]
    assert_alike(actual, expected)


def test_samples_follow_the_seed_and_the_line_number():
    def sampled(lines, **decode):
        actual = made_translator(temperature=1.0, **decode).translate_nbest(
            lines, source="en", target="de"
        )
        return [translation.hypotheses for translation in actual]

    first = sampled([LINES[0]] * 2)
    assert first == sampled([LINES[0]] * 2) and first[0] != first[1]
    assert sampled([LINES[0]], seed=1)[0] != first[0]


def test_languages_may_differ_by_line():
    translator = made_translator()
    sources, targets = ["en", "de", "en"], ["de", "fr", "fr"]
    mixed = translator.translate_nbest(LINES[:3], source=sources, target=targets)
    single = [
        translator.translate_nbest([line], source=source, target=target)[0]
        for line, source, target in zip(LINES, sources, targets, strict=False)
    ]
    assert_alike(mixed, single)
    assert translator.translate(LINES[:3], source="en", target="fr") != [t.text for t in single]


def test_scoring_gives_the_score_of_the_search():
    translator, vocab = made_translator(), vocabulary()
    actual = translator.translate_nbest(LINES, source="en", target="de")
    triples = [
        (line, h)
        for line, translation in zip(LINES, actual, strict=True)
        for h in translation.hypotheses
        if not translation.truncated and [*vocab.encode(h.text), vocab.eos_id] == list(h.tokens)
    ]
    assert len(triples) > 3
    scores = translator.score(
        [line for line, _ in triples], [h.text for _, h in triples], source="en", target="de"
    )
    np.testing.assert_allclose(scores, [h.score for _, h in triples], atol=SCORE_ATOL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "en", "target": "german"}, r"--target=german.*did you mean de\?.*en, de, fr"),
        ({"source": "sw", "target": "de"}, "--source=sw: the model has no such language"),
        ({"source": ["en"], "target": "de"}, "line 2 has no language"),
        ({"source": "en", "target": ["de"] * 9}, "more languages than lines are given; give one"),
        (
            {"source": "en", "target": "de", "retry_pivot": "en"},
            "retry_pivot is the pivot of retry_off",
        ),
        ({"source": "en", "target": "de", "beam_size": 0}, "beam_size=0 must be a whole number"),
        (
            {"source": "en", "target": "de", "beam_size": "2"},
            "beam_size='2' must be a whole number",
        ),
    ],
)
def test_invalid_arguments_are_one_error(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        made_translator().translate(LINES, **arguments)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["one", None], "line 2 must be a text, not NoneType; leave it out"),
        (["one", b"two"], "line 2 must be a text, not bytes; decode it"),
        ((x for x in ("one", "two", 3)), "line 3 must be a text, not int"),
        (["one", "two \ud83d"], r"line 2 has half a character \(a surrogate, \\ud83d\) at 5"),
        (b"one", "lines: must be a list of texts, not bytes"),
        (None, "lines: must be a list of texts, not NoneType"),
    ],
    ids=["none", "bytes", "generator", "surrogate", "bare bytes", "no list"],
)
def test_errors_name_the_line_that_is_not_text(lines, message):
    with pytest.raises(UserError, match=message):
        made_translator().translate(lines, source="en", target="de")


@pytest.mark.parametrize("run", [None, 3, b"runs/mine"])
def test_an_invalid_run_path_is_an_error(run):
    with pytest.raises(UserError, match=f"run={run!r}: name the directory of a run"):
        Translator.load(run)


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ({"target": b"de"}, "target=b'de': must be a language code, or a list"),
        ({"target": None}, "target=None: must be a language code, or a list"),
        ({"source": 5}, "source=5: must be a language code"),
        ({"target": ["de", None]}, "target of line 2 is None; give a language code"),
        ({"source": [["en"], "en"]}, "source of line 1 is"),
    ],
)
def test_errors_name_an_invalid_language(languages, message):
    with pytest.raises(UserError, match=message):
        made_translator().translate(LINES[:2], **({"source": "en", "target": "de"} | languages))


def test_references_are_checked_as_lines_are():
    translator, languages = made_translator(), {"source": "en", "target": "de"}
    for references, message in (
        (["eins", None], "reference 2 must be a text, not NoneType"),
        ("eins", r"references: must be a list of lines, not one text; write \[text\]"),
    ):
        with pytest.raises(UserError, match=message):
            translator.score(LINES[:2], references, **languages)
    with pytest.raises(UserError, match="lines: must be a list of texts, not int"):
        translator.score(5, ["eins"], **languages)


def test_empty_input_gives_no_translations(capsys):
    translator = made_translator()
    assert translator.translate([], source="en", target="de") == []
    assert translator.translate(iter(()), source="en", target="de", progress=True) == []
    assert capsys.readouterr().out == ""


def test_a_progress_bar_is_shown_on_request(capsys):
    """For finished batches, on standard error, with or without a terminal."""
    translator = made_translator()
    expected = translator.translate(LINES, source="en", target="de")
    assert "lines" not in capsys.readouterr().err
    assert translator.translate(LINES, source="en", target="de", progress=True) == expected
    out, error = capsys.readouterr()
    assert out == "" and f"{len(LINES)}/{len(LINES)}" in error


def test_repr_of_a_translator():
    assert repr(made_translator()) == "Translator(layout='register', languages=3)"


def test_unknown_language_is_reported_before_any_line_is_read():
    with pytest.raises(UserError, match="no such language"):
        made_translator().stream(iter(()), source="en", target="zz")


def test_a_broken_model_is_reported_with_the_line():
    whole = made_translator()
    broken = jax.tree.map(lambda array: array * np.float32("nan"), whole._inference_model.params)
    translator = Translator(whole.config, vocabulary(), broken)
    with pytest.raises(UserError, match="line 2: the model's output is not a number"):
        translator.translate(["", LINES[0]], source="en", target="de")


def test_invalid_scoring_inputs_are_refused():
    with pytest.raises(UserError, match="line 2 of the reference needs .* add a larger bucket"):
        made_translator().score(LINES[:2], [LINES[0], " ".join(LINES)], source="en", target="de")
    with pytest.raises(UserError, match="2 lines but 1 references"):
        made_translator().score(LINES[:2], LINES[:1], source="en", target="de")


def test_scoring_refuses_before_it_computes(monkeypatch):
    monkeypatch.setattr("mnmt_jax.decoding.translate_lines.score_batch", None)
    with pytest.raises(UserError, match="line 2 of the reference needs"):
        made_translator().score(LINES[:2], ["one", " ".join(LINES)], source="en", target="de")


def test_length_and_step_limits():
    assert length_limit(Decode(max_length=200), 5) == 200
    assert length_limit(Decode(max_length=200, max_length_per_source=1.2), 7) == 18
    assert length_limit(Decode(max_length=15, max_length_per_source=1.2), 7) == 15
    assert [initial_step_limit(bucket, 201) for bucket in (16, 32, 64, 128)] == [32, 56, 104, 201]
    assert initial_step_limit(16, 48) == 48 and initial_step_limit(16, 49) == 32


def test_a_missing_argument_is_named_with_the_method_called():
    translator = made_translator()
    for method in (translator.translate, translator.stream, translator.translate_nbest):
        name = method.__qualname__
        with pytest.raises(TypeError, match=f"^{name}: missing a required argument: 'target'$"):
            method(["x"], source="de")
