"""Comparison of several evaluations: common averages, and names with decoding settings."""

import dataclasses
import re

import pytest

from mnmt_jax.commands.compare import _with_folders
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.comparison import (
    common_groups,
    comparison_notes,
    direction_groups,
    with_common_directions,
)
from mnmt_jax.evaluation.report import report_page
from mnmt_jax.evaluation.result import BLEU, NEAREST
from mnmt_jax.evaluation.result_labels import decoding_label, disambiguate_names
from mnmt_jax.evaluation.result_tables import comparison_table, result_page
from mnmt_jax.pages.html_elements import breakable
from mnmt_jax.pages.style_sheet import COLOURS, DARK_COLOURS, colour_class
from tests.unit.colours import contrast, difference
from tests.unit.made_results import made_result

FIVE = ("en", "de", "fr", "cs", "nl")


def changed(result, change):
    return dataclasses.replace(result, directions=tuple(map(change, result.directions)))


def rows_of(results):
    lines = [line for line in comparison_table(results).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture
def grown():
    """A model before and after training on Dutch: docs/finetuning.md."""
    after = made_result("after", FIVE, seed=2, layout="after")
    before = made_result("grown", FIVE, seed=1, layout="grown")

    def without_dutch(item):
        return dataclasses.replace(item, supervised=item.supervised and "nl" not in item.direction)

    before = dataclasses.replace(changed(before, without_dutch), trained_languages=FIVE[:-1])
    return [before, dataclasses.replace(after, trained_languages=FIVE)]


def test_directions_untrained_in_one_model_form_a_separate_group(grown):
    groups = direction_groups(grown)
    assert [(group.statuses, group.directions(0)) for group in groups] == [
        (("supervised", "supervised"), 6),
        (("zero-shot", "zero-shot"), 6),
        (("unseen language nl", "supervised"), 2),
        (("unseen language nl", "zero-shot"), 6),
    ]
    assert groups[2].items[0].keys() == groups[2].items[1].keys() == {("en", "nl"), ("nl", "en")}
    for group in groups:
        for number, result in enumerate(grown):
            values = [result.values("bleu")[pair] for pair in group.items[0]]
            assert group.mean(number, "bleu").mean == pytest.approx(sum(values) / len(values))
    assert [row[4] for row in rows_of(grown)[4:6]] == ["unseen language nl (2)", "supervised (2)"]
    assert not comparison_notes(grown)
    page = report_page(grown)
    assert "unseen language nl or supervised, 2 directions, 400 sentences" in page
    assert '<th scope="row">supervised</th>' not in page  # of 6 directions, and of 8


def test_a_language_is_unseen_only_if_no_direction_was_trained(grown):
    """Not if its trained directions were not evaluated, nor if the training is not recorded."""
    before, after = grown
    trained = dataclasses.replace(before, trained_languages=FIVE)
    unrecorded = dataclasses.replace(before, trained_languages=None)
    for result in (trained, unrecorded):
        groups = direction_groups([result, after])
        assert [group.statuses[0] for group in groups] == ["supervised", "zero-shot", "zero-shot"]
    groups = direction_groups([before, dataclasses.replace(after, trained_languages=None)])
    assert groups[-1].statuses == ("unseen language nl", "zero-shot")
    few = dataclasses.replace(before, trained_languages=("en", "de"))
    groups = [(group.statuses[0], group.directions(0)) for group in direction_groups([few])]
    assert groups == [("supervised", 6), ("unseen language", 14)]
    alone = [(group.statuses, group.directions(0)) for group in direction_groups([before])]
    assert alone == [(("supervised",), 6), (("zero-shot",), 6), (("unseen language nl",), 8)]
    for text in (result_page(before), re.sub("<[^>]*>", " ", report_page([before]))):
        averages = re.split("Averages(?: by group)?", text)[1].replace("|", " ").split()
        for title, count in (("zero-shot", "6"), ("unseen language nl", "8")):
            assert f"{title} {count} " in " ".join(averages)


def test_averages_show_groups_of_the_same_directions_in_all_runs(grown):
    """Of runs with other training languages, too; not of runs with fewer directions."""
    before = grown[0]
    unrecorded = dataclasses.replace(before, name="unrecorded", trained_languages=None)
    text = " ".join(re.sub("<[^>]*>", " ", report_page([before, unrecorded])).split())
    assert text.count(" supervised 6 ") == 2
    assert " zero-shot 6 " not in text and " zero-shot 14 " not in text
    fewer = dataclasses.replace(before, directions=before.directions[1:])
    assert "unseen language nl" in report_page([before, before])
    assert common_groups([before, before]) == {"supervised", "zero-shot", "unseen language nl"}
    assert common_groups([before, fewer]) == {"zero-shot", "unseen language nl"}


def test_statuses_of_a_merged_group_are_in_one_order(grown):
    trained = [
        ("en", "de", one, other) for one, other in (("fr", "cs"), ("cs", "nl"), ("nl", "fr"))
    ]
    english = changed(grown[0], lambda item: dataclasses.replace(item, supervised=False))
    results = [dataclasses.replace(english, trained_languages=codes) for codes in trained]
    names = {status for group in direction_groups(results) for status in group.statuses}
    assert not [name for name in names if re.search("unseen.*zero-shot", name)], names
    assert any(re.search("zero-shot, .*unseen", name) for name in names)


def test_unseen_languages_are_named_in_few_groups_only(grown):
    """Also where no direction is common to the evaluations."""
    before = grown[0]
    english = changed(before, lambda item: dataclasses.replace(item, supervised=False))
    expected = [("zero-shot", 2), ("unseen language", 18)]
    many = dataclasses.replace(english, trained_languages=("en", "de"))
    assert [(group.title, group.directions(0)) for group in direction_groups([many])] == expected
    other = changed(many, lambda item: dataclasses.replace(item, sentences=1))
    groups = direction_groups([many, other])
    assert [(group.title, group.directions(1)) for group in groups] == expected
    assert not any(group.comparable for group in groups)


def test_dependent_sentences_of_document_context_are_noted(grown):
    plain, other = grown
    chunks = dataclasses.replace(other, decoding={**other.decoding, "context": 64})
    (note,) = comparison_notes([plain, chunks])
    assert f"p of {other.name}, translated with document context, are too small" in note


@pytest.mark.parametrize(
    ("key", "one", "other", "title"),
    [
        (
            "spbleu",
            "v:2|model:aa",
            "v:2|model:bb",
            "spBLEU is by models that are not known to be the same (aa, bb)",
        ),
        ("comet", "comet:2|model:a|files:1", "comet:2|model:a|files:2", "COMET is by models"),
        ("bert_score", {"to de": "model:a"}, {"to de": "model:b"}, "BERTScore is by models"),
        ("off_target_second", "a|1", "b|1", "The second off-target ratios are by different"),
    ],
)
def test_scores_of_different_models_are_noted(grown, key, one, other, title):
    first, second = (
        dataclasses.replace(result, signatures={**result.signatures, key: signature})
        for result, signature in zip(grown, (one, other), strict=True)
    )
    (note,) = comparison_notes([first, second])
    assert note.startswith(title) and note.endswith(" and cannot be compared.")
    assert note in comparison_table([first, second])
    assert not comparison_notes([first, grown[1]])


def test_other_packages_and_languages_are_not_other_models(grown):
    signatures = (
        {
            "comet": "comet:2|model:a|files:1",
            "bert_score": {"to de": "model:a", "to fr": "model:b"},
        },
        {
            "comet": "comet:3|model:a|files:1",
            "bert_score": {"to de": "model:a", "to nl": "model:c"},
        },
    )
    results = [
        dataclasses.replace(result, signatures=texts)
        for result, texts in zip(grown, signatures, strict=True)
    ]
    assert not comparison_notes(results)


def test_outside_systems_are_grouped_by_the_training_of_a_run(grown):
    run = grown[1]
    outside = dataclasses.replace(
        changed(run, lambda item: dataclasses.replace(item, supervised=None)), name="outside"
    )
    for results in ([run, outside], [outside, run]):
        groups = direction_groups(results)
        assert [group.title for group in groups] == ["supervised", "zero-shot"]
        assert [group.directions(1) for group in groups] == [8, 12]
        (note,) = comparison_notes(results)
        assert note.startswith("Directions are grouped by the training of after: the training")
        assert "of outside are unknown; 'mnmt evaluate --trained_on'" in comparison_table(results)
        page = report_page(results)
        assert note.partition(":")[0] in page
        assert page.count("English to German (trained on): ") == page.count("English to German: ")
        assert page.count("English to German: ")
    assert [group.title for group in direction_groups([outside, outside])] == ["all"]
    assert not comparison_notes([outside, outside])
    other = changed(outside, lambda item: dataclasses.replace(item, sentences=1))
    assert [group.title for group in direction_groups([run, other])] == ["all"]
    assert comparison_notes([run, other])[0].startswith("Directions are not grouped by training")
    three = direction_groups([outside, *grown])
    assert [group.statuses for group in three][2:] == [
        ("unseen language nl", "unseen language nl", "supervised"),
        ("unseen language nl", "unseen language nl", "zero-shot"),
    ]


def test_means_use_the_directions_of_all_evaluations(grown):
    after = grown[1]
    fewer = dataclasses.replace(grown[0], directions=grown[0].directions[3:])
    groups = direction_groups([fewer, after])
    common = {item.direction for item in fewer.directions}
    assert {pair for group in groups for pair in group.items[0]} == common
    assert all(group.items[0].keys() == group.items[1].keys() for group in groups)
    (note,) = comparison_notes([fewer, after])
    assert note.startswith("Left out of the means: 3 directions not evaluated on the same")
    assert "en-de, en-fr, en-cs" in note and note in comparison_table([fewer, after])
    assert "3 directions not evaluated" in report_page([fewer, after])
    assert [len(run.directions) for run in with_common_directions([fewer, after])] == [17, 17]


def test_no_score_is_marked_best_if_sentences_differ(grown):
    """100 and 40 sentences a direction, as of two values of --limit."""
    one = made_result("one", FIVE, seed=1, layout="one")
    other = made_result("other", FIVE, seed=2, layout="other")
    assert 'class="best"' in report_page([one, other])
    fewer = changed(other, lambda item: dataclasses.replace(item, sentences=40))
    groups = direction_groups([one, fewer])
    assert [group.comparable for group in groups] == [False, False]
    assert groups[0].best(BLEU) is None
    page = report_page([one, fewer])
    assert 'class="best"' not in page and "Bold is best" not in page
    assert "the means cannot be compared" in page
    assert "8 directions, 1,600 sentences" in page and "8 directions, 320 sentences" in page
    assert [row[5] for row in rows_of([one, fewer])[:2]] == ["1,600", "320"]
    assert "cannot be compared" in comparison_table([one, fewer])


def test_different_sentences_of_equal_number_are_not_compared():
    one, other = (made_result(name, FIVE, seed=1) for name in ("one", "other"))

    def marked(text):
        return lambda item: dataclasses.replace(item, text_fingerprint=text)

    assert direction_groups([changed(one, marked("a")), changed(other, marked("a"))])[0].comparable
    assert direction_groups([one, changed(other, marked("a"))])[0].comparable  # one is unknown
    pair = [changed(one, marked("a")), changed(other, marked("b"))]
    assert not direction_groups(pair)[0].comparable


def test_a_score_missing_in_one_evaluation_is_in_no_mean():
    one, other = (made_result(name, FIVE, seed=n) for n, name in enumerate(("one", "other")))

    def without(item):
        return dataclasses.replace(item, bleu=None if item.direction == ("en", "de") else item.bleu)

    group = direction_groups([one, changed(other, without)])[0]
    assert [group.mean(number, "bleu").directions for number in (0, 1)] == [7, 7]
    values = [v for pair, v in one.values("bleu").items() if pair in group.items[0]]
    assert group.mean(0, "bleu").mean == pytest.approx((sum(values) - values[0]) / 7)
    text = comparison_table([one, changed(other, without)])
    assert "BLEU, supervised: mean over 7 of 8 directions" in text
    assert group.best(NEAREST) == min(group.mean(n, NEAREST.key).mean for n in (0, 1))


@pytest.mark.parametrize(
    "decoding,label",
    [
        ({"method": "greedy", "beam_size": 1, "batch": 4, "checkpoint": "step 2"}, "greedy"),
        ({"method": "beam", "beam_size": 5, "pivot": "en"}, "beam 5, pivot=en"),
        ({"method": "beam", "beam_size": 4, "weights": "int8"}, "beam 4, weights=int8"),
        (
            {"method": "beam", "beam_size": 5, "source_contrast": 0.7, "seed": 0},
            "beam 5, source_contrast=0.7",
        ),
        ({"method": "sample", "beam_size": 1, "temperature": 1.0}, "sample 1, temperature=1.0"),
        ({}, "–"),
    ],
)
def test_the_table_shows_the_decoding_settings(decoding, label):
    result = dataclasses.replace(made_result("run", FIVE, seed=1), decoding=decoding)
    assert decoding_label(result) == label
    assert [row[3] for row in rows_of([result])] == [label] * 2
    assert f'<td class="words">{breakable(label)}</td>' in report_page([result])


def test_tables_say_how_a_checkpoint_was_chosen():
    result = made_result("run", FIVE, seed=1)
    decoding = {"method": "greedy", "checkpoint": f"best, step {result.step}"}
    result = dataclasses.replace(result, decoding=decoding)
    assert [row[1] for row in rows_of([result])] == [f"{result.step:,} (best)"] * 2
    ensemble = {"method": "beam", "beam_size": 5, "ensemble": ["/a/path/two", "three@best"]}
    assert decoding_label(dataclasses.replace(result, decoding=ensemble)) == (
        "beam 5, ensemble=two three@best"
    )


def test_evaluations_of_fewer_sentences_say_how_they_become_comparable():
    result = made_result("run", FIVE, seed=1)
    short = [dataclasses.replace(item, sentences=7) for item in result.directions]
    (note,) = comparison_notes([result, dataclasses.replace(result, directions=tuple(short))])
    assert note.endswith("cannot be compared; evaluate all with --limit=7 in other folders.")


def test_one_direction_has_no_map():
    result = made_result("run", FIVE, seed=1)
    one = dataclasses.replace(result, directions=result.directions[:1])
    assert "Every direction" not in report_page([one])
    assert "Every direction" in report_page([result])


def test_names_include_settings_changed_by_flags():
    """A run whose own search is greedy, evaluated without flags and with a beam."""
    run = made_result("run", FIVE, seed=1)
    greedy, beam = {"method": "greedy", "beam_size": 1}, {"method": "beam", "beam_size": 5}
    plain = dataclasses.replace(run, decoding=greedy, decoding_overrides={})
    overridden = dataclasses.replace(run, decoding=beam, decoding_overrides={"beam_size": 5})
    assert [result.name for result in disambiguate_names([plain, overridden])] == [
        "run",
        "run, beam_size=5",
    ]
    contrast = {"source_contrast": 0.7}  # of the run itself, switched off by a flag
    plain_search = dataclasses.replace(plain, decoding=greedy | contrast)
    off = dataclasses.replace(plain, decoding_overrides={"source_contrast": 0.0})
    names = [result.name for result in disambiguate_names([plain_search, off])]
    assert names == ["run", "run, source_contrast=0.0"]


def test_colours_are_visible_and_distinct():
    assert len(COLOURS) == len(DARK_COLOURS) == 14
    for colours, background in ((COLOURS, "#ffffff"), (DARK_COLOURS, "#1a1e25")):
        assert min(contrast(colour, background) for colour in colours) >= 3
        eight = colours[:8]
        pairs = [(a, b) for n, a in enumerate(eight) for b in eight[:n]]
        assert min(difference(*pair) for pair in pairs) > 0.1
    assert colour_class(5) != colour_class(0) == colour_class(14)


def test_evaluations_of_equal_name_are_named_by_folder():
    first, second = (
        made_result("register", FIVE, seed=1, layout="register"),
        made_result("register", FIVE, seed=1, layout="register"),
    )
    named = _with_folders([first, second], ["a/report", "b/report"])
    assert [result.name for result in named] == ["register (a/report)", "register (b/report)"]
    assert _with_folders([first], ["a/report"]) == [first]
    with pytest.raises(UserError, match="named twice"):
        _with_folders([first, second], ["a/report", "a/../a/report"])
