"""The published procedures: swapped roles, references through SentencePiece, labels."""

import itertools
import json
import sys
import types

import pytest
from sacrebleu.metrics import BLEU, CHRF

from mnmt_jax.config.loading import load_config
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import spbleu as spbleu_module
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.optional_metrics import MetricSelection, OptionalMetrics
from mnmt_jax.evaluation.published_procedures import (
    PROCEDURES,
    PaperScorer,
    PaperTexts,
    choose_procedure,
    round_as_published,
)
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.evaluation.spbleu import FloresTokenizer, spbleu
from mnmt_jax.evaluation.translations import TranslatedSentence
from mnmt_jax.vocabulary.languages import (
    EC40_LANGUAGES,
    IWSLT17_LANGUAGES,
    MITRE_LANGUAGES,
    NEWSCRAWL_LANGUAGES,
    OPUS100_LANGUAGES,
    TED19_LANGUAGES,
    get_language,
)
from tests.unit import made_text
from tests.unit.made_metrics import made_environment

DIRECTION = ("en", "de")
REFERENCES = ["drei Haus grün Fluss klein", "eins zwei drei Haus", "klein und grün läuft hinter"]
HYPOTHESES = ["drei Haus grün Fluss klein läuft", "eins zwei drei Haus und", "klein und grün läuft"]


@pytest.fixture
def flores(tmp_path, monkeypatch):
    """Return a SentencePiece model in place of Flores-200's."""
    monkeypatch.setattr(spbleu_module, "SACREBLEU_DIR", str(tmp_path / "sacrebleu"))
    path = spbleu_module.cached_model_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(made_text.vocabulary().model)
    return FloresTokenizer(path)


@pytest.fixture
def moses(monkeypatch):
    """Fake sacremoses: joins tokens and full stops."""
    package = types.ModuleType("sacremoses")
    package.languages = []

    class MosesDetokenizer:
        def __init__(self, *, lang):
            package.languages.append(lang)
            self._lang = lang

        def detokenize(self, tokens):
            assert isinstance(tokens, list)
            return " ".join(tokens).replace(" .", ".") + f" [{self._lang}]"

    package.MosesDetokenizer = MosesDetokenizer
    monkeypatch.setitem(sys.modules, "sacremoses", package)
    return package


def scorer(name, tokenizer=None):
    return PaperScorer(PROCEDURES[name], made_text.vocabulary(), tokenizer)


def test_roles_are_swapped(flores):
    texts = PaperTexts(["x"] * 3, HYPOTHESES, REFERENCES)
    actual = scorer("mitre", flores).scores(DIRECTION, texts)
    correct, _, _ = spbleu(HYPOTHESES, REFERENCES, flores)
    swapped, _, _ = spbleu(REFERENCES, HYPOTHESES, flores)
    assert actual == {
        "spbleu": round_as_published(swapped),
        "chrf": round_as_published(CHRF(word_order=2).corpus_score(REFERENCES, [HYPOTHESES]).score),
    }
    assert abs(correct - swapped) > 1
    words = scorer("opus100").scores(DIRECTION, texts)
    bleu = BLEU(tokenize="13a").corpus_score(REFERENCES, [HYPOTHESES]).score
    assert words["bleu"] == round_as_published(bleu)
    assert round_as_published(BLEU().corpus_score(HYPOTHESES, [REFERENCES]).score) != words["bleu"]


def test_references_pass_through_sentencepiece(flores):
    """A character without a piece becomes <<unk>>; the hypothesis' mark of one becomes <unk>."""
    actual = scorer("mitre", flores)
    vocabulary = made_text.vocabulary()
    assert vocabulary.unk_id in vocabulary.encode("drei Ω Haus")
    texts = actual.texts(
        DIRECTION,
        ["three Ω house", " one  two"],
        ["drei \u2047 Haus", "eins"],
        ["drei ΩHaus", "eins  zwei"],
    )
    assert texts.references[0] == "drei <<unk>>Haus"
    assert texts.sources[0] == "three <<unk>> house"
    assert texts.hypotheses == ["drei<unk>Haus", "eins"]
    decoded = vocabulary.decode(vocabulary.encode("eins  zwei"))
    assert texts.references[1] == decoded.strip()


def test_long_pairs_are_left_out_of_opus100():
    actual = scorer("opus100")
    vocabulary = made_text.vocabulary()
    word = "drei "
    pieces = len(vocabulary.encode(word.strip()))
    rows = []
    for tokens in (126, 127, 128):
        text = (word * 200).strip()
        while len(vocabulary.encode(text)) > tokens:
            text = text[:-1]
        rows.append((text, len(vocabulary.encode(text))))
    assert pieces and [count for _, count in rows] == [126, 127, 128]
    short = "drei"
    sources = [rows[0][0], rows[1][0], short, short]
    references = [short, short, rows[1][0], rows[2][0]]
    # With its tag and eos a source may have 126 pieces; with its eos a target 127.
    texts = actual.texts(DIRECTION, sources, ["a", "b", "c", "d"], references)
    assert texts.hypotheses == ["a", "c"]
    assert scorer("mitre").texts(DIRECTION, sources, ["a"] * 4, references).hypotheses == ["a"] * 4
    assert actual.scores(DIRECTION, PaperTexts([], [], [])) == {}


def test_texts_are_detokenized_where_the_corpus_is_tokenized(moses):
    texts = scorer("ted19").texts(DIRECTION, ["three house"], ["drei Haus ."], ["drei Haus"])
    assert texts == PaperTexts(["three house [en]"], ["drei Haus. [de]"], ["drei Haus [de]"])
    assert sorted(moses.languages) == ["de", "en"]  # made once per language
    assert scorer("opus100").texts(DIRECTION, ["one"], ["eins ."], ["eins"]).hypotheses == [
        "eins ."
    ]


def test_iwslt17_compares_detokenized_hypotheses_with_tokenized_references():
    """The erratum: translations equal to their references do not score 100."""
    made = scorer("iwslt17")
    tokens = [
        "l' amico dell' autore non c' è , vero ?",
        "un' altra volta all' inizio dell' anno , disse l' uomo .",
    ]
    detokenized = [made._moses.detokenize(text, "it") for text in tokens]
    assert detokenized[0] == "l'amico dell'autore non c'è, vero?"
    texts = PaperTexts(["x"] * 2, detokenized, tokens)
    actual = made.scores(("en", "it"), texts)
    expected = BLEU(tokenize="13a").corpus_score(detokenized, [tokens]).score
    assert actual == {"bleu": round_as_published(expected)} and expected < 60
    prepared = made.texts(DIRECTION, ["three house ."], ["drei Haus ."], ["drei Haus ."])
    assert prepared.hypotheses == ["drei Haus."]
    assert prepared.references == ["drei Haus <<unk>>"]  # the vocabulary has no full stop
    assert (
        "but not on references, an error that the authors' erratum reports" in made.procedure.label
    )
    assert "Moses' detokenizer first" in PROCEDURES["ted30"].label
    table = made.procedure.table(
        "bleu", {("en", "it"): 10.0, ("it", "en"): 20.0, ("it", "ro"): 0.0}
    )
    assert {label: cell["mean"] for label, cell in table.items()} == {
        "en →": 10.0,
        "→ en": 20.0,
        "zero": 0.0,
    }


def test_missing_sacremoses_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match=r"pip install '\.\[paper-metrics\]'"):
        scorer("ec40")
    scorer("mitre")


def test_procedures_are_selected_by_the_languages():
    languages = {
        "mitre": MITRE_LANGUAGES,
        "ec40": EC40_LANGUAGES,
        "ted19": TED19_LANGUAGES,
        "opus100": OPUS100_LANGUAGES,
        "ted30": NEWSCRAWL_LANGUAGES,
        "iwslt17": IWSLT17_LANGUAGES,
    }
    for name, codes in languages.items():
        assert choose_procedure("auto", tuple(reversed(codes))).name == name
        assert choose_procedure(name, ("en", "de")).name == name
    with pytest.raises(UserError, match="no paper has a model of these 2 languages; name the"):
        choose_procedure("auto", ("en", "de"))
    with pytest.raises(UserError, match="--paper_compatible=ted must be one of mitre, ec40, ted19"):
        choose_procedure("ted", ("en", "de"))


@pytest.mark.parametrize("name", ["mitre", "iwslt17", "ted30", "ec40"])
def test_codes_of_any_form_have_the_same_averages(name):
    procedure = PROCEDURES[name]
    pairs = list(itertools.permutations(procedure.languages, 2))
    scores = {pair: float(number) for number, pair in enumerate(pairs)}
    other = {code: get_language(code).flores or code for code in procedure.languages}
    other |= {"no": "nor"} if "no" in other else {}  # Flores has Bokmål
    assert other["en"] == "eng_Latn"
    renamed = {(other[s], other[t]): score for (s, t), score in scores.items()}
    assert procedure.table("bleu", renamed) == procedure.table("bleu", scores)


def test_regions_of_a_language_are_separate_directions():
    table = PROCEDURES["iwslt17"].table("bleu", {("it", "pt"): 1.0, ("it", "pt_BR"): 3.0})
    assert table["zero"] == {"mean": 2.0, "directions": 2}


def test_numbers_of_languages_the_scripts_measure():
    measured = {
        (name, metric): len(codes)
        for name, procedure in PROCEDURES.items()
        for metric, codes in procedure.measured_languages.items()
    }
    assert measured == {
        ("ec40", "comet"): 35,
        ("ec40", "off_target"): 28,
        ("opus100", "bert_score"): 70,  # 69 and English
        ("opus100", "comet"): 83,  # 82 and English
    }


@pytest.mark.parametrize(("value", "expected"), [(12.34499, 12.35), (12.344, 12.34), (0.0, 0.0)])
def test_rounding_as_printed(value, expected):
    """sacreBLEU prints four decimals, the table script rounds them to two."""
    assert round_as_published(value) == expected


@pytest.fixture
def benchmark(tmp_path):
    for code in ("en", "de", "fr"):
        text = "\n".join(made_text.sentences(code, 12)) + "\n"
        (tmp_path / f"test.{code}").write_text(text, encoding="utf-8")
    corpus = ParallelFiles("made", f"{tmp_path}/{{split}}.{{language}}", ("en", "de", "fr"))
    return Benchmark("made", corpus)


def subject():
    config = load_config([], ["Model.layout='prefix'", "Model.stage_layers=(2,)"])

    def translate(lines, direction):
        """A translator that drops the last word, and is always wrong into French."""
        target = made_text.sentences(direction[1], len(lines))
        return [
            TranslatedSentence("non" if direction[1] == "fr" else t.rpartition(" ")[0])
            for t in target
        ]

    vocabulary = made_text.vocabulary()
    supervised = frozenset([("en", "de"), ("de", "en")])
    facts = {"name": "made", "decoding": {}, "supervised": supervised, "vocabulary": vocabulary}
    return EvaluatedModel(translate=translate, config=config, **facts)


def test_an_evaluation_names_both_kinds_of_scores(benchmark, tmp_path, flores):
    environment = made_environment(tmp_path / "environment")
    for name in ("roberta-large", "bert-base-multilingual-cased"):
        (tmp_path / name).mkdir()
    selection = MetricSelection(paper="mitre", bert_score=tmp_path, metrics_environment=environment)
    further = OptionalMetrics(selection, made_text.vocabulary(), ("en", "de", "fr"))
    result = evaluate(subject(), benchmark, tmp_path / "out", optional_metrics=further)
    by_direction = {item.direction: item for item in result.directions}
    item = by_direction["en", "de"]
    references = made_text.sentences("de", 12)
    hypotheses = [text.rpartition(" ")[0] for text in references]
    assert item.spbleu == spbleu(hypotheses, references, flores)[0]
    assert item.paper["spbleu"] == round_as_published(spbleu(references, hypotheses, flores)[0])
    # Nothing in the output is wrong, it is short: a penalty for brevity here, wrong pieces there.
    assert item.paper["spbleu"] < item.spbleu - 1
    assert item.bert_score == 50.0 and item.paper["bert_score"] == 50.0
    assert by_direction["en", "fr"].paper["off_target"] == round_as_published(
        by_direction["en", "fr"].off_target_lid
    )
    means = result.paper["averages"]["spbleu"]
    everything = [item.paper["spbleu"] for item in result.directions]
    assert means["avg"] == {"mean": pytest.approx(sum(everything) / 6), "directions": 6}
    assert result.averages["spbleu"].all.mean == pytest.approx(
        sum(item.spbleu for item in result.directions) / 6
    )
    assert result.paper["procedure"] == "mitre" and "swapped" in result.paper["label"]

    back = read_result(tmp_path / "out")
    assert (back.directions, back.paper) == (result.directions, result.paper)
    document = json.loads((tmp_path / "out/scores.json").read_text())
    assert "tok:flores200" in document["signatures"]["spbleu"]
    assert "layer:17" in document["signatures"]["bert_score"]["to en"]
    table = (tmp_path / "out/table.md").read_text()
    section = table.split("## Averages by the procedure of mitre")[1].split("## ")[0]
    assert "hypotheses and references swapped" in section
    assert f"{means['avg']['mean']:.2f}" in section and "→ Germanic" in section
    header = table.split("## Directions")[1].splitlines()[2]
    assert [text.strip() for text in header.split("|")][4:7] == ["BERTScore", "spBLEU", "BLEU"]
    page = (tmp_path / "out/report.html").read_text()
    assert "As published" in page and "Not comparable with the numbers above" in page


def test_an_evaluation_without_extras_reports_what_is_left_out(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(spbleu_module, "SACREBLEU_DIR", str(tmp_path / "empty"))
    result = evaluate(subject(), benchmark, tmp_path / "out", optional_metrics=OptionalMetrics())
    [note] = [note for note in result.notes if "spBLEU" in note]
    assert "--flores200_model" in note and "en-de" in note
    assert {item.spbleu for item in result.directions} == {None} and result.paper == {}
    table = (tmp_path / "out/table.md").read_text()
    assert "| spBLEU" not in table and "spBLEU left out" in table and "procedure" not in table
    assert "As published" not in (tmp_path / "out/report.html").read_text()
    paper = OptionalMetrics(MetricSelection(spbleu=False, paper="mitre"), made_text.vocabulary())
    result = evaluate(subject(), benchmark, tmp_path / "again", optional_metrics=paper)
    assert set(result.directions[0].paper) == {"chrf", "off_target"}
    assert [note for note in result.notes if "spBLEU left out" in note]
    with pytest.raises(UserError, match="uses the vocabulary of a model"):
        OptionalMetrics(MetricSelection(paper="mitre"))
