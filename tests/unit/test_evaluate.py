"""Evaluation end to end with fake translators of known scores."""

import dataclasses
import json

import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.evaluation.comparison import comparison_notes, direction_groups, limit_notes
from mnmt_jax.evaluation.evaluate import evaluate, report, score, translate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.overwrite_check import check_overwrite
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.evaluation.result_tables import comparison_table
from mnmt_jax.evaluation.scoring import SAMPLES
from mnmt_jax.evaluation.significance import SentenceSignificance
from mnmt_jax.evaluation.translations import TranslatedSentence, TranslationStore
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.language_detectors import find_detector
from mnmt_jax.vocabulary.languages import many_to_many_directions
from tests.unit.made_benchmark import LANGUAGES, SENTENCES, SUPERVISED, make_corpus


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


@pytest.fixture
def benchmark(corpus):
    return Benchmark("phrases", corpus)


def _subject(translate, step=7, **changes):
    config = load_config([], ["Model.layout='prefix'", "Model.stage_layers=(2,)"])
    facts = {"name": "made", "supervised": SUPERVISED, "parameters": 12, "step": step}
    facts |= {"decoding": {"checkpoint": f"step {step}", "buckets": (8, 16)}}
    return EvaluatedModel(translate=translate, config=config, **{**facts, **changes})


class _MadeTranslator:
    """A translator that looks sentences up in the corpus; `choose` gives the output language."""

    def __init__(self, benchmark, choose):
        phrases = benchmark._phrases
        self._index = {
            code: {text: number for number, text in enumerate(texts)}
            for code, texts in phrases.items()
        }
        self._phrases, self._choose = phrases, choose
        self.calls = []

    def __call__(self, lines, direction):
        self.calls.append(direction)
        answer = self._phrases[self._choose(direction)]
        return [TranslatedSentence(answer[self._index[direction[0]][line]]) for line in lines]


def test_an_oracle_has_perfect_scores(benchmark, tmp_path):
    translate = _MadeTranslator(benchmark, lambda direction: direction[1])
    result = evaluate(_subject(translate), benchmark, tmp_path)
    assert [item.direction for item in result.directions] == list(
        many_to_many_directions(LANGUAGES)
    )
    for item in result.directions:
        assert (item.bleu, item.chrf, item.exact_match) == pytest.approx((100, 100, 100))
        assert item.off_target_nearest == 0.0 and item.empty == 0
        assert item.off_target_lid == item.off_target_lid_reference > 0
        assert item.detected == {item.target: SENTENCES}
        assert item.supervised == ("en" in item.direction)
    assert result.averages["bleu"].zero_shot.directions == 6
    assert len(result.samples) == 12 * SAMPLES
    assert {(sample.hypothesis == sample.reference) for sample in result.samples} == {True}
    # Each direction shows other sentences: the first one 0 to 4, the second 5 to 9.
    assert [sample.index for sample in result.samples] == [*range(SENTENCES)]
    part = evaluate(_subject(translate), benchmark.only([("de", "fr")]), tmp_path / "part")
    assert part.samples == tuple(s for s in result.samples if s.direction == ("de", "fr"))
    phrases = benchmark._phrases
    for sample in result.samples:
        assert sample.source_text == phrases[sample.source][sample.index]
        assert sample.reference == phrases[sample.target][sample.index]


@pytest.mark.parametrize(
    "choose,wrong",
    [
        (lambda direction: direction[0], lambda direction: True),  # copies the source
        (lambda direction: "en", lambda direction: direction[1] != "en"),
    ],
    ids=["copies", "english"],
)
def test_wrong_languages_are_counted_exactly(benchmark, tmp_path, choose, wrong):
    result = evaluate(_subject(_MadeTranslator(benchmark, choose)), benchmark, tmp_path)
    phrases = benchmark._phrases
    checked = 0
    for item in result.directions:
        answers = phrases[choose(item.direction)]
        # Phrases that are the same in both languages are exact, hence not off-target.
        same = sum(map(str.__eq__, answers, phrases[item.target]))
        assert item.exact_match == pytest.approx(100 * same / SENTENCES)
        expected = 100 * (SENTENCES - same) / SENTENCES if wrong(item.direction) else 0
        assert item.off_target_nearest == pytest.approx(expected)
        checked += expected > 0
    assert checked >= 9
    if choose(("x", "y")) == "en":
        assert result.averages["off_target_nearest"].to_english.mean == 0.0
        assert result.averages["off_target_nearest"].zero_shot.mean > 90


def test_written_files_are_read_back(benchmark, tmp_path):
    log = tmp_path / "metrics.jsonl"
    records = [
        {"step": 5, "nll": 2.5, "loss": 3.0, "seconds": 9.5},
        {"step": 7, "nll": 2.0, "seconds": 20.0, "validation": {"supervised": {"nll": 1.5}}},
        {"step": 9, "nll": None, "seconds": 30.0, "validation": {"zero_shot": {"nll": 2.25}}},
    ]
    log.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"step": 1')
    translate = _MadeTranslator(benchmark, lambda direction: direction[1])
    result = evaluate(_subject(translate, metrics_file=log), benchmark, tmp_path / "out")
    assert result.seconds == 20.0
    assert result.curves == {
        "train": ((5, 2.5), (7, 2.0)),
        "supervised": ((7, 1.5),),
        "zero_shot": ((9, 2.25),),
    }
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    assert scores["counts"] == {"directions": 12, "sentences": 12 * SENTENCES}
    assert scores["step"] == 7 and scores["config"]["model"]["layout"] == "prefix"
    assert scores["averages"]["bleu"]["from_english"] == {
        "mean": pytest.approx(100),
        "directions": 3,
    }
    assert scores["averages"]["chrf"]["between_families"]["Slavic"]["Romance"]["directions"] == 1
    signatures = scores["signatures"]
    assert "|tok:13a|" in signatures["bleu"]["to de fr cs en"]
    assert "lid.176.ftz" in signatures["off_target_lid"]
    assert "languages:en de fr cs" in signatures["off_target_nearest"]
    back = read_result(tmp_path / "out")
    assert back.directions == result.directions and back.samples == result.samples
    assert back.curves == result.curves and back.averages == result.averages
    assert back.trained_languages == tuple(sorted(LANGUAGES)) == result.trained_languages
    table = (tmp_path / "out/table.md").read_text()
    assert "| de → cs" in table and "100.0" in table
    report = (tmp_path / "out/report.html").read_text()
    assert "prefix" in report and report.startswith("<!DOCTYPE html>")


def test_complete_translations_are_reused(benchmark, tmp_path):
    first = _MadeTranslator(benchmark, lambda direction: direction[1])
    before = evaluate(_subject(first), benchmark, tmp_path)
    files = {pair: tmp_path / "translations" / f"{pair[0]}-{pair[1]}.jsonl" for pair in first.calls}
    assert len(files) == 12 and all(path.is_file() for path in files.values())
    files["en", "de"].unlink()
    lines = files["de", "fr"].read_text().splitlines(keepends=True)
    files["de", "fr"].write_text("".join(lines[:-1]))  # one sentence is missing
    files["fr", "cs"].write_text("".join(lines))  # of another direction
    files["cs", "en"].write_text(files["cs", "en"].read_text()[:-20])  # damaged
    again = _MadeTranslator(benchmark, lambda direction: direction[1])
    after = evaluate(_subject(again), benchmark, tmp_path)
    assert set(again.calls) == {("en", "de"), ("de", "fr"), ("fr", "cs"), ("cs", "en")}
    assert after == before


def test_results_of_different_language_detectors_are_not_mixed(tmp_path):
    texts = {"en": "The weather was much better than we had expected.", "de": "Das Wetter war gut."}
    for code, line in texts.items():
        (tmp_path / f"test.{code}").write_text(f"{line}\n" * 2)
    corpus = ParallelFiles("mine", str(tmp_path / "{split}.{language}"), ("en", "de"))

    def translate(lines, direction):
        return [TranslatedSentence(texts["en"]) for _ in lines]

    subject = _subject(translate, supervised=None)
    usual = evaluate(subject, Benchmark("mine", corpus), tmp_path / "lid")
    benchmark = Benchmark("mine", corpus, detector=find_detector("langdetect"))
    result = evaluate(subject, benchmark, tmp_path / "out")
    assert [item.off_target_lid for item in result.directions] == [100.0, 0.0]
    assert [item.off_target_lid_reference for item in result.directions] == [0.0, 0.0]
    page = (tmp_path / "out" / "table.md").read_text()
    assert "Off-target (langdetect)" in page and "lid.176" not in page
    assert "- off_target_lid: `langdetect" in page
    html = (tmp_path / "out" / "report.html").read_text()
    assert "Off-target (langdetect)" in html and "lid.176" not in html
    assert "Off-target (lid.176, langdetect)" in comparison_table([usual, result])
    (note,) = comparison_notes([usual, result])
    assert "different language detectors (lid.176, langdetect)" in note
    assert comparison_notes([result, result]) == []
    with pytest.raises(UserError, match=r"--lid: langdetect, now lid.176"):
        evaluate(subject, Benchmark("mine", corpus), tmp_path / "out")
    replaced = evaluate(subject, Benchmark("mine", corpus), tmp_path / "out", overwrite=True)
    assert replaced == usual


@pytest.mark.parametrize(
    "changed",
    [
        {"step": 8},
        {"identity": {"parameters": 2, "vocabulary": "v", "instruction": "1"}},
        {"identity": {"parameters": 1, "vocabulary": "w", "instruction": "1"}},
        {"identity": {"parameters": 1, "vocabulary": "v", "instruction": "2"}},
    ],
    ids=["step", "parameters", "vocabulary", "instruction"],
)
def test_overwriting_replaces_translations_of_another_model(benchmark, tmp_path, capsys, changed):
    before = {"identity": {"parameters": 1, "vocabulary": "v", "instruction": "1"}}
    english = _MadeTranslator(benchmark, lambda pair: "en")
    evaluate(_subject(english, **before), benchmark, tmp_path)
    later = _MadeTranslator(benchmark, lambda direction: direction[1])
    other = _subject(later, **(before | changed))
    existing = _contents(tmp_path)
    (key,) = changed if "step" in changed else _different(before["identity"], changed["identity"])
    message = rf"^--output=\S+: .* \({'checkpoint' if key == 'step' else key}\); .*--overwrite$"
    with pytest.raises(UserError, match=message):
        evaluate(other, benchmark, tmp_path)
    assert _contents(tmp_path) == existing and not later.calls
    capsys.readouterr()
    result = evaluate(other, benchmark, tmp_path, overwrite=True)
    assert len(later.calls) == 12
    assert result.averages["exact_match"].all.mean == 100.0
    assert "by another model or search are replaced" in capsys.readouterr().err
    (tmp_path / "scores.json").unlink()  # unfinished, as the first one would have left it
    existing = _contents(tmp_path)
    with pytest.raises(UserError, match="holds translations made with other settings"):
        evaluate(_subject(english, **before), benchmark, tmp_path)
    assert _contents(tmp_path) == existing


def test_translations_replaced_by_another_command_are_not_mixed(benchmark, tmp_path):
    right = _MadeTranslator(benchmark, lambda direction: direction[1])

    def translate(lines, direction):
        if len(right.calls) == 2:
            TranslationStore(tmp_path / "translations", {"name": "other", "model": {}})
        return right(lines, direction)

    with pytest.raises(UserError, match="another command with other settings has replaced"):
        evaluate(_subject(translate), benchmark, tmp_path)
    assert len(right.calls) == 3 and not list(tmp_path.glob("translations/*.jsonl"))


def test_separate_stages_write_the_same_files(benchmark, tmp_path, capsys):
    folders = tmp_path / "stages", tmp_path / "evaluate"
    subject = _subject(_MadeTranslator(benchmark, lambda direction: direction[1]))
    written = []
    translated = translate(subject, benchmark, folders[0])
    written.append({path.name for path in folders[0].iterdir()})
    score(subject, benchmark, folders[0], directions=translated.directions)
    written.append({path.name for path in folders[0].iterdir()})
    report(folders[0])
    assert written == [{"translations"}, {"translations", "statistics", "scores.json"}]
    assert len(translated.directions) == 12 and translated.reused == ()
    evaluate(subject, benchmark, folders[1])
    first, second = (
        {path.relative_to(folder): text for path, text in _contents(folder).items()}
        for folder in folders
    )
    assert first == second and len(first) == 24 + len(("made_by", "scores", "table", "report"))
    table = (folders[0] / "table.md").read_text("utf-8").splitlines()
    assert "- buckets: (8, 16)" in table and "- intervals: `bootstrap over sentences" in "".join(
        table
    )
    intervals = read_result(folders[0]).directions[0].intervals
    assert {*intervals} == {"bleu", "chrf", "exact_match", "off_target_nearest", "off_target_lid"}
    lines = capsys.readouterr().err.splitlines()
    assert lines[:24] == lines[24:]
    assert lines[:12] == [
        f"{number}/12 {'-'.join(direction)} translated"
        for number, direction in enumerate(benchmark.directions, start=1)
    ]
    assert all("BLEU" in line for line in lines[12:24])


def test_only_translations_of_the_same_model_are_scored(benchmark, tmp_path):
    subject = _subject(_MadeTranslator(benchmark, lambda direction: direction[1]))
    other = _subject(_MadeTranslator(benchmark, lambda direction: "en"), step=8)
    directions = translate(subject, benchmark, tmp_path).directions
    missing = tmp_path / "translations" / "de-fr.jsonl"
    text = missing.read_bytes()
    missing.unlink()
    with pytest.raises(UserError, match=r"de-fr\.jsonl: is missing, damaged or of other sentences"):
        score(subject, benchmark, tmp_path, directions=directions)
    missing.write_bytes(text)
    translate(other, benchmark, tmp_path, overwrite=True)
    contents = _contents(tmp_path)
    with pytest.raises(UserError, match="another command with other settings has replaced"):
        score(subject, benchmark, tmp_path, directions=directions)
    assert _contents(tmp_path) == contents and not (tmp_path / "scores.json").exists()
    with pytest.raises(UserError, match="is missing, damaged"):
        score(subject, benchmark, tmp_path / "none", directions=directions)


def _contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _different(old, new):
    return [name for name in old if old[name] != new[name]]


def test_a_finished_evaluation_of_another_task_is_kept(benchmark, corpus, tmp_path):
    translate = _MadeTranslator(benchmark, lambda direction: direction[1])
    evaluate(_subject(translate), benchmark, tmp_path)
    other = Benchmark("sentences", corpus, limit=2)
    existing = _contents(tmp_path)
    with pytest.raises(UserError, match=r"holds a finished evaluation .* \(task\); choose"):
        evaluate(_subject(translate), other, tmp_path)
    assert _contents(tmp_path) == existing
    evaluate(_subject(translate), other, tmp_path, overwrite=True)
    assert read_result(tmp_path).task == "sentences"
    (tmp_path / "scores.json").write_text("")  # what a full disk had left
    evaluate(_subject(translate), Benchmark("phrases", corpus, limit=2), tmp_path)
    assert read_result(tmp_path).task == "phrases"


@pytest.mark.parametrize(
    "limit,which,message",
    [
        (7, "all", "sentences: 60 of en-de, now 7"),
        (0, "zero_shot", "directions: 6 of its 12 would be lost"),
        (0, "supervised", "directions: 6 of its 12 would be lost"),
    ],
)
def test_a_finished_evaluation_loses_no_directions(
    benchmark, corpus, tmp_path, limit, which, message
):
    translate = _MadeTranslator(benchmark, lambda direction: direction[1])
    evaluate(_subject(translate), benchmark, tmp_path)
    existing = _contents(tmp_path)
    translate.calls.clear()
    fewer = Benchmark("phrases", corpus, limit=limit)
    with pytest.raises(UserError, match=rf"holds a finished evaluation .* \({message}\); choose"):
        evaluate(_subject(translate), fewer, tmp_path, subset=which)
    assert _contents(tmp_path) == existing and not translate.calls
    result = evaluate(_subject(translate), fewer, tmp_path, subset=which, overwrite=True)
    assert read_result(tmp_path).directions == result.directions
    assert len(result.directions) == (12 if which == "all" else 6)


def test_a_finished_evaluation_gains_directions(benchmark, tmp_path):
    translate = _MadeTranslator(benchmark, lambda direction: direction[1])
    evaluate(_subject(translate), benchmark, tmp_path, subset="supervised")
    translate.calls.clear()
    assert len(evaluate(_subject(translate), benchmark, tmp_path).directions) == 12
    assert len(translate.calls) == 6


def test_different_sentences_of_equal_number_are_refused(tmp_path):
    """Also in an unfinished evaluation; results of earlier versions have no fingerprint."""

    def translate(lines, direction):
        return [TranslatedSentence("x") for _ in lines]

    def one_direction(text):
        for code in ("en", "de"):
            (tmp_path / f"test.{code}").write_text(f"{text} {code}\n", encoding="utf-8")
        files = ParallelFiles("own", str(tmp_path / "{split}.{language}"), ("en", "de"))
        return Benchmark("own", files)

    output = tmp_path / "out"
    evaluate(_subject(translate), one_direction("one"), output)
    with pytest.raises(UserError, match=r"a finished evaluation .* \(sentences of en-de\)"):
        evaluate(_subject(translate), one_direction("two"), output)
    finished = json.loads((output / "scores.json").read_text("utf-8"))
    (output / "scores.json").unlink()
    message = r"holds translations made with .* \(sentences: 1 of en-de, now 1\)"
    with pytest.raises(UserError, match=message):
        evaluate(_subject(translate), one_direction("two"), output)
    for item in finished["directions"]:
        del item["text_fingerprint"]
    (output / "scores.json").write_text(json.dumps(finished), encoding="utf-8")
    assert {item.text_fingerprint for item in read_result(output).directions} == {""}
    evaluate(_subject(translate), one_direction("one"), output)


def test_optional_scores_are_not_lost(benchmark, tmp_path):
    translate = _MadeTranslator(benchmark, lambda direction: direction[1])
    evaluate(_subject(translate), benchmark, tmp_path)
    finished = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    finished["directions"][0] |= {"comet": 80.0, "spbleu": 20.0}
    finished["signatures"]["comet"] = "model:a"
    finished["paper"] = {"procedure": "mitre"}
    provenance = json.loads((tmp_path / "translations" / "made_by.json").read_text("utf-8"))
    (tmp_path / "scores.json").write_text(json.dumps(finished), encoding="utf-8")
    known = {"directions": benchmark.directions, "supervised": SUPERVISED, "system": {}}
    for settings, message in (
        (
            {},
            "COMET would be lost, spBLEU would be lost, --paper_compatible=mitre would be lost",
        ),
        ({"spbleu": "f", "comet": "b", "paper_compatible": "mitre"}, "model of COMET"),
    ):
        with pytest.raises(UserError, match=rf"\({message}\)"):
            check_overwrite(tmp_path, provenance, benchmark, optional=settings, **known)
    same = {"spbleu": "f", "comet": "model:a", "paper_compatible": "mitre", "bert_score": "b"}
    check_overwrite(tmp_path, provenance, benchmark, optional=same, **known)


def test_an_interrupted_overwriting_evaluation_is_continued(benchmark, tmp_path):
    """Killed before scoring, it is continued by the same command and refused to the earlier one."""
    subjects = [
        _subject(_MadeTranslator(benchmark, lambda direction: direction[1]), step)
        for step in (7, 8)
    ]
    evaluate(subjects[0], benchmark, tmp_path)
    scores = (tmp_path / "scores.json").read_bytes()
    evaluate(subjects[1], benchmark, tmp_path, overwrite=True)
    (tmp_path / "scores.json").write_bytes(scores)
    with pytest.raises(UserError, match=r"\(checkpoint\)"):
        evaluate(subjects[0], benchmark, tmp_path)
    subjects[1].translate.calls.clear()
    assert evaluate(subjects[1], benchmark, tmp_path).step == 8
    assert not subjects[1].translate.calls


def test_a_system_of_empty_outputs_has_no_mean_off_target_ratio(benchmark, corpus, tmp_path):
    few = Benchmark("phrases", corpus, languages=("de", "fr", "en"), limit=3)
    silent = evaluate(
        _subject(lambda lines, direction: [TranslatedSentence("") for _ in lines]),
        few,
        tmp_path / "silent",
    )
    right = evaluate(
        _subject(_MadeTranslator(benchmark, lambda direction: direction[1])),
        few,
        tmp_path / "right",
    )
    folders = [tmp_path / "silent", tmp_path / "right"]
    significance = SentenceSignificance.read([silent, right], folders, 20)
    table = comparison_table([silent, right], significance=significance).splitlines()
    assert table[0].rstrip("| ").endswith(" Off-target")
    cells = [line.strip("| ").split("|")[-1].strip() for line in table[2:4]]
    assert cells == ["–", "0.0 ±0.0"]
    groups = direction_groups([silent, right])
    assert all(significance.difference(g, 1, "off_target_nearest") is None for g in groups)
    assert significance.difference(groups[0], 1, "chrf") is not None


def test_limit_and_choice_of_directions(corpus, tmp_path):
    benchmark = Benchmark("phrases", corpus, languages=("de", "fr", "en"), limit=7)
    translate = _MadeTranslator(benchmark, lambda direction: direction[1])
    result = evaluate(_subject(translate), benchmark, tmp_path, subset="zero_shot")
    assert [item.direction for item in result.directions] == [("de", "fr"), ("fr", "de")]
    assert {item.sentences for item in result.directions} == {7}
    limit = "Sentences: at most the first 7 of each direction (--limit)."
    for name in ("table.md", "report.html"):
        assert limit in (tmp_path / name).read_text("utf-8")
    full_result = dataclasses.replace(result, name="full", signatures={})
    assert limit_notes([full_result, result]) == [limit.replace(".", f" ({result.name}).")]
    assert limit_notes([full_result]) == []
    texts = benchmark.texts(("de", "fr"))
    full = [pair for pair, _ in zip(corpus.pairs("test", ("de", "fr")), range(7), strict=False)]
    assert list(zip(texts.sources, texts.references, strict=True)) == full


def test_trained_directions_come_from_the_run_not_from_names(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.trained_directions() is None
    run.write_tasks({"wmt_de_en": ("en", "de"), "everything": ("fr", "kab")})
    assert run.trained_directions() == {("en", "de"), ("fr", "kab")}
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.json"]
    run.tasks_file.write_text('["wmt_de_en"]')
    with pytest.raises(UserError, match="tasks.json: cannot be read"):
        run.trained_directions()


def test_user_files_are_evaluated(tmp_path):
    texts = {"en": ["one", "two", "three"], "de": ["eins", "zwei", "drei"]}
    for code, lines in texts.items():
        (tmp_path / f"test2016.{code}").write_text("\n".join(lines) + "\n")
    corpus = ParallelFiles(
        "mine", str(tmp_path / "{split}.{language}"), ("en", "de"), splits={"test": "test2016"}
    )
    benchmark = Benchmark("mine", corpus, limit=2)
    assert benchmark.nearest is None

    def translate(lines, direction):
        return [TranslatedSentence("" if line == "two" else line, line == "one") for line in lines]

    result = evaluate(_subject(translate, supervised=None), benchmark, tmp_path / "out")
    first = result.directions[0]
    assert first.direction == ("en", "de") and first.sentences == 2
    assert first.off_target_nearest is None and first.supervised is None and first.empty == 1
    assert first.notes == ("1 sources were too long and were cut",)
    assert result.averages["chrf"].supervised is None
    assert "does not record its training directions" in result.notes[0]
    assert any("1 sources were too long and were cut (en-de)" == note for note in result.notes)


def test_a_translator_that_drops_lines_is_refused(benchmark, tmp_path):
    with pytest.raises(UserError, match="59 translations of 60 sentences"):
        evaluate(
            _subject(lambda lines, _: [TranslatedSentence(line) for line in lines[1:]]),
            benchmark,
            tmp_path,
        )
    assert not list((tmp_path / "translations").glob("*.jsonl"))
