"""COMET and BERTScore, with fake packages of the same interface."""

import dataclasses
import sys
import types

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import benchmark
from mnmt_jax.evaluation.neural_metrics import BERT_SCORE_LAYERS, ENGLISH_MODELS, BertScore, Comet
from mnmt_jax.evaluation.optional_metrics import MetricSelection, OptionalMetrics
from mnmt_jax.evaluation.scoring import ScoredDirection
from tests.unit.made_results import made_result

SOURCES = ["ein Haus", "zwei", "drei"]
HYPOTHESES = ["a house", "two", ""]
REFERENCES = ["a house", "two", "three"]


class _Tensor:
    """The subset of a tensor that callers of bert-score use."""

    def __init__(self, values):
        self._values = values

    def tolist(self):
        return list(self._values)


class FakeBertScore(types.ModuleType):
    """Fake bert_score: F is 1 for equal texts, else 0.5; P and R differ."""

    __version__ = "0.3.13"

    def __init__(self):
        super().__init__("bert_score")
        self.made = []
        outer = self

        class BERTScorer:
            def __init__(self, *, model_type, num_layers, device):
                outer.made.append((model_type, num_layers, device))

            def score(self, cands, refs, batch_size=64):
                assert isinstance(cands, list) and isinstance(refs, list)
                f1 = [1.0 if cand == ref else 0.5 for cand, ref in zip(cands, refs, strict=True)]
                return _Tensor([0.0] * len(f1)), _Tensor([2.0] * len(f1)), _Tensor(f1)

        self.BERTScorer = BERTScorer


class FakeComet(types.ModuleType):
    """Fake comet: the score is the fraction of sentences with consistent fields."""

    __version__ = "2.2.6"

    def __init__(self):
        super().__init__("comet")
        self.loaded = []

    def load_from_checkpoint(self, path, *, local_files_only):
        assert local_files_only
        self.loaded.append(path)
        return self

    def predict(self, samples, batch_size, gpus, *, progress_bar):
        assert not progress_bar
        assert all(list(sample) == ["src", "mt", "ref"] for sample in samples)
        assert samples[0]["src"] == SOURCES[0] and gpus == 0
        scores = [float(sample["mt"] == sample["ref"]) for sample in samples]
        return types.SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def comet(monkeypatch):
    package = FakeComet()
    monkeypatch.setitem(sys.modules, "comet", package)
    return package


@pytest.fixture
def bert_score(monkeypatch):
    package = FakeBertScore()
    monkeypatch.setitem(sys.modules, "bert_score", package)
    return package


@pytest.fixture
def models(tmp_path):
    """Folders of two of the four models."""
    for name in ("roberta-large", "bert-base-multilingual-cased"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_comet(tmp_path, comet):
    checkpoint = tmp_path / "model.ckpt"
    checkpoint.touch()
    scorer = Comet(checkpoint)
    assert scorer.score(SOURCES, HYPOTHESES, REFERENCES) == [1, 1, 0]
    assert comet.loaded == [str(checkpoint)]
    assert scorer.signature == f"comet:2.2.6|model:{checkpoint}"
    with pytest.raises(UserError, match=r"--comet=.*none\.ckpt: no such file; give the checkpoint"):
        Comet(tmp_path / "none.ckpt")


def test_bert_score(models, bert_score):
    scorer = BertScore(models)
    assert scorer.score(HYPOTHESES, REFERENCES, "en") == [1, 1, 0.5]
    assert scorer.score(HYPOTHESES[2:], REFERENCES[2:], "de") == [0.5]
    roberta, multilingual = models / "roberta-large", models / "bert-base-multilingual-cased"
    assert bert_score.made == [(str(roberta), 17, "cpu"), (str(multilingual), 9, "cpu")]
    assert scorer.signature("de") == (
        "bert_score:0.3.13|model:bert-base-multilingual-cased|layer:9|no-idf"
    )


@pytest.mark.parametrize(
    ("own_models", "names"),
    [
        (True, {"zh": "bert-base-chinese", "tr": "dbmdz/bert-base-turkish-cased"}),
        (False, {"zh": "bert-base-multilingual-cased", "tr": "bert-base-multilingual-cased"}),
    ],
)
def test_models_of_the_two_scripts(models, bert_score, own_models, names):
    scorer = BertScore(models, language_specific_models=own_models)
    names |= {"en": "roberta-large", "de": "bert-base-multilingual-cased"}
    assert {code: scorer.model(code) for code in names} == names
    assert set(names.values()) <= set(BERT_SCORE_LAYERS)
    footnote = BertScore(models, language_specific_models=own_models, english=ENGLISH_MODELS[1])
    names |= {"en": "xlm-roberta-large"}
    assert {code: footnote.model(code) for code in names} == names
    assert "model:xlm-roberta-large|layer:17|" in footnote.signature("en")
    assert not scorer.missing("de") and not scorer.missing("en")
    assert ("bert-base-chinese is not there; download" in scorer.missing("zh")) == own_models


def test_the_model_of_english_is_selected_and_recorded(models, bert_score):
    selection = MetricSelection(spbleu=False, bert_score=models)
    assert OptionalMetrics(selection).settings == {"bert_score": str(models)}
    (models / "xlm-roberta-large").mkdir()
    chosen = dataclasses.replace(selection, bert_score_english="xlm-roberta-large")
    metrics = OptionalMetrics(chosen)
    assert metrics.settings == {"bert_score": f"{models}, xlm-roberta-large for English"}
    results = {item.direction: item for item in made_result("a", ("de", "en"), seed=0).directions}
    texts = benchmark.TestSet(SOURCES, REFERENCES)
    standard = ScoredDirection(results["de", "en"], None, (), {})
    scored = metrics.add(standard, texts, HYPOTHESES)
    assert scored.result.bert_score == pytest.approx(100 * 2.5 / 3)
    assert scored.statistics["bert_score"].tolist() == [[1, 1], [1, 1], [0.5, 1]]
    assert bert_score.made == [(str(models / "xlm-roberta-large"), 17, "cpu")]


def test_missing_packages_are_reported(tmp_path, monkeypatch):
    (tmp_path / "model.ckpt").touch()
    for package in ("comet", "bert_score"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=r"COMET is not installed .*numpy < 2"):
        Comet(tmp_path / "model.ckpt")
    with pytest.raises(UserError, match=r"BERTScore is not installed .*neural-metrics"):
        BertScore(tmp_path)
    with pytest.raises(UserError, match=r"--bert_score=.*none: no such folder; it holds"):
        BertScore(tmp_path / "none")
    (tmp_path / "t5").mkdir()
    with pytest.raises(UserError, match="takes a path that contains 't5' for a T5 model"):
        BertScore(tmp_path / "t5")
