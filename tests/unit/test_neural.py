"""Neural metrics in an environment with stand-ins for their packages.

`tests/metrics` has the packages themselves.
"""

import dataclasses
import sys
from unittest import mock

import pytest

from mnmt_jax.commands import metrics as metrics_command
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation import benchmark, metrics_environment
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import EvaluatedModel
from mnmt_jax.evaluation.metrics_environment import (
    REQUIREMENTS,
    MetricWorker,
    create_environment,
    default_environment,
)
from mnmt_jax.evaluation.neural_metrics import (
    BERT_SCORE_LAYERS,
    ENGLISH_MODELS,
    BertScore,
    Comet,
    identify_model,
)
from mnmt_jax.evaluation.optional_metrics import MetricSelection, OptionalMetrics
from mnmt_jax.evaluation.scoring import ScoredDirection
from mnmt_jax.evaluation.translations import TranslatedSentence
from tests.made_foreign import spm_model
from tests.unit.made_benchmark import make_corpus
from tests.unit.made_metrics import loaded_bert_models, made_environment, without_package
from tests.unit.made_results import made_result

TEXTS = benchmark.TestSet(["ein Haus", "zwei", "drei"], ["a house", "two", "three"])
HYPOTHESES = ["a house", "two", ""]


@pytest.fixture
def environment(tmp_path):
    return made_environment(tmp_path / "environment")


@pytest.fixture
def worker(environment):
    return MetricWorker(environment)


@pytest.fixture
def models(tmp_path):
    """Folders of two of the four models."""
    for name in ("roberta-large", "bert-base-multilingual-cased"):
        (tmp_path / name).mkdir()
    return tmp_path


def checkpoint(folder, text=""):
    path = folder / f"{text or 'good'}.ckpt"
    path.write_text(text)
    return path


def test_comet(tmp_path, worker):
    path = checkpoint(tmp_path)
    scorer = Comet(path, worker)
    for _ in range(2):
        assert scorer.score(TEXTS, HYPOTHESES) == [100, 100, 0]
    assert scorer.signature("de") == scorer.setting == f"comet:2.2.7|{identify_model(path)}"
    with pytest.raises(UserError, match=r"--comet=.*none\.ckpt: no such file; give the checkpoint"):
        Comet(tmp_path / "none.ckpt", worker)
    with pytest.raises(UserError, match=r"--kiwi=.*checkpoint of Unbabel/wmt22-cometkiwi-da"):
        Comet(tmp_path / "none.ckpt", worker, "kiwi")


def test_errors_of_the_packages_are_one_line(tmp_path, environment, worker):
    with pytest.raises(UserError, match=r"damaged.ckpt: failed in .* \(ValueError: no zip file\)"):
        Comet(checkpoint(tmp_path, "damaged"), worker).score(TEXTS, HYPOTHESES)
    assert Comet(checkpoint(tmp_path), worker).score(TEXTS, HYPOTHESES)  # the process goes on
    with pytest.raises(UserError, match=r"crash.ckpt: the process .* \(Killed for memory\); 'mnmt"):
        Comet(checkpoint(tmp_path, "crash"), worker).score(TEXTS, HYPOTHESES)
    without_package(environment, "bert_score")
    with pytest.raises(UserError, match="bert_score: failed in .*No module named 'bert_score'"):
        MetricWorker(environment).version("bert_score")


def test_no_environment_is_reported(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="none in .*nowhere; 'mnmt metrics setup' makes it"):
        MetricWorker(tmp_path / "nowhere").version("comet")
    with pytest.raises(UserError, match="none.ckpt: no such file"):  # the file is checked first
        Comet(tmp_path / "none.ckpt", MetricWorker(tmp_path / "nowhere"))
    monkeypatch.setenv("MNMT_JAX_METRICS", str(tmp_path / "named"))
    assert default_environment() == tmp_path / "named"
    selection = MetricSelection(spbleu=False, comet={"comet": checkpoint(tmp_path)})
    with pytest.raises(UserError, match="none in .*named; 'mnmt metrics setup'"):
        OptionalMetrics(selection)


def test_the_process_ends_with_its_owner(environment):
    worker = MetricWorker(environment)
    assert worker.version("comet") == "2.2.7"
    process = worker._process
    assert process.poll() is None
    del worker
    assert process.wait(timeout=20) == 0


def test_setup_installs_the_requirements(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(metrics_environment, "_run", commands.append)
    create_environment(tmp_path / "new", requirements=["torch==2.13.0"])
    make, install = commands
    assert make == [sys.executable, "-m", "venv", str(tmp_path / "new")]
    assert install[0] == str(tmp_path / "new" / "bin" / "python")
    assert install[-len(REQUIREMENTS) - 2 :] == ["install", "torch==2.13.0", *REQUIREMENTS]
    with pytest.raises(UserError, match="is not a Python environment; choose another folder"):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "text").touch()
        create_environment(tmp_path / "mine")
    monkeypatch.undo()
    with pytest.raises(UserError, match="'false -m venv .*' failed with status 1; see above"):
        create_environment(tmp_path / "new", python="false")
    with pytest.raises(UserError, match="nothing/python: cannot be run"):
        create_environment(tmp_path / "new", python=str(tmp_path / "nothing/python"))


def test_check_prints_versions_and_names_what_fails(environment, monkeypatch, capsys):
    words = ["metrics", "check", "--metrics_environment", str(environment)]
    monkeypatch.setattr("sys.argv", words)
    metrics_command.main()
    versions = "comet\t2.2.7\nbert_score\t0.3.13\nmetricx\t4.57.6\n"
    assert capsys.readouterr().out == versions
    without_package(environment, "comet")
    with pytest.raises(UserError, match="not all metrics work; repeat 'mnmt metrics setup'"):
        metrics_command.main()
    printed = capsys.readouterr()
    assert printed.out == versions.partition("\n")[2] and "No module named 'comet'" in printed.err


def test_bert_score(models, environment, worker):
    scorer = BertScore(models, worker)
    assert scorer.score(TEXTS, HYPOTHESES, "en") == [100, 100, 50]
    assert scorer.score(TEXTS, HYPOTHESES, "de") == scorer.score(TEXTS, HYPOTHESES, "en")
    roberta, multilingual = models / "roberta-large", models / "bert-base-multilingual-cased"
    assert loaded_bert_models(environment) == [
        [str(roberta), "17", "cpu"],
        [str(multilingual), "9", "cpu"],
    ]
    model, files = identify_model(multilingual).split("|")
    assert model == "model:bert-base-multilingual-cased" and len(files) == len("files:12345678")
    assert scorer.signature("de") == f"bert_score:0.3.13|{model}|{files}|layer:9|no-idf"


def test_signatures_name_models_by_their_content(tmp_path):
    hub = tmp_path / "models--Unbabel--wmt22-comet-da/snapshots/123/checkpoints/model.ckpt"
    copied = tmp_path / "wmt22-comet-da" / "checkpoints" / "model.ckpt"
    for path in (hub, copied):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(2**20) + b"middle" + bytes(2**20))
    names, hashes = zip(*(identify_model(path).split("|") for path in (hub, copied)), strict=True)
    assert names == ("model:Unbabel/wmt22-comet-da", "model:wmt22-comet-da")
    assert hashes[0] == hashes[1]
    longer = bytes(2**21) + b"middle1"
    beginning = b"1" + bytes(2**20 - 1) + b"middle" + bytes(2**20)
    end = bytes(2**20) + b"middle" + bytes(2**20 - 1) + b"1"
    for changed in (longer, beginning, end):
        copied.write_bytes(changed)
        assert identify_model(copied).split("|")[1] != hashes[0]
    before = identify_model(copied.parent)
    (copied.parent / "tokenizer.json").write_text("{}")
    assert identify_model(copied.parent) != before


@pytest.mark.parametrize(
    ("own_models", "names"),
    [
        (True, {"zh": "bert-base-chinese", "tr": "dbmdz/bert-base-turkish-cased"}),
        (False, {"zh": "bert-base-multilingual-cased", "tr": "bert-base-multilingual-cased"}),
    ],
)
def test_models_of_the_two_scripts(models, worker, own_models, names):
    scorer = BertScore(models, worker, language_specific_models=own_models)
    names |= {"en": "roberta-large", "de": "bert-base-multilingual-cased"}
    assert {code: scorer.model(code) for code in names} == names
    assert set(names.values()) <= set(BERT_SCORE_LAYERS)
    english = ENGLISH_MODELS[1]
    footnote = BertScore(models, worker, language_specific_models=own_models, english=english)
    names |= {"en": "xlm-roberta-large"}
    assert {code: footnote.model(code) for code in names} == names
    (models / "xlm-roberta-large").mkdir()
    assert "model:xlm-roberta-large|files:" in footnote.signature("en")
    assert "|layer:17|" in footnote.signature("en")
    assert not scorer.missing("de") and not scorer.missing("en")
    assert ("bert-base-chinese is not there; download" in scorer.missing("zh")) == own_models


def test_selected_metrics_are_scored_and_recorded(models, environment):
    path = checkpoint(models)
    selection = MetricSelection(
        spbleu=False,
        bert_score=models,
        comet={"comet": path, "kiwi": path},
        metrics_environment=environment,
    )
    settings = dict.fromkeys(("comet", "kiwi"), f"comet:2.2.7|{identify_model(path)}")
    german = OptionalMetrics(selection).settings(["de"])
    assert german == {**settings, "bert_score": {"to de": mock.ANY}}
    assert "model:bert-base-multilingual-cased|files:" in german["bert_score"]["to de"]
    (models / "xlm-roberta-large").mkdir()
    chosen = dataclasses.replace(selection, bert_score_english="xlm-roberta-large")
    metrics = OptionalMetrics(chosen)
    expected = metrics.settings(["en"])
    results = {item.direction: item for item in made_result("a", ("de", "en"), seed=0).directions}
    standard = ScoredDirection(results["de", "en"], None, (), {})
    scored = metrics.add(standard, TEXTS, HYPOTHESES)
    assert scored.result.bert_score == pytest.approx(250 / 3)
    assert (scored.result.comet, scored.result.kiwi) == pytest.approx((200 / 3, 200 / 3))
    assert scored.statistics["bert_score"].tolist() == [[100, 1], [100, 1], [50, 1]]
    assert loaded_bert_models(environment) == [[str(models / "xlm-roberta-large"), "17", "cpu"]]
    assert metrics.signatures["kiwi"] == settings["kiwi"]
    assert "xlm-roberta-large" in metrics.signatures["bert_score"]["to en"]
    assert metrics.signatures == expected and set(expected) == {"comet", "kiwi", "bert_score"}


@pytest.mark.parametrize("changed", ["spBLEU", "BERTScore"])
def test_scores_of_another_model_are_not_replaced(tmp_path, environment, changed):
    """Of BERTScore also when the files of one target language's model are others."""
    models, flores = tmp_path / "models", tmp_path / "flores.model"
    for name in ("roberta-large", "bert-base-multilingual-cased"):
        (models / name).mkdir(parents=True)
        (models / name / "weights").write_text("first")
    flores.write_bytes(spm_model())
    selection = MetricSelection(
        flores200_model=flores,
        bert_score=models,
        metrics_environment=environment,
    )
    few = benchmark.Benchmark("phrases", make_corpus(), languages=("de", "en"), limit=3)
    subject = EvaluatedModel("made", lambda lines, _: [*map(TranslatedSentence, lines)], None, {})
    output, settings = tmp_path / "out", {"optional_metrics": OptionalMetrics(selection)}
    result = evaluate(subject, few, output, **settings)
    assert evaluate(subject, few, output, **settings) == result
    if changed == "spBLEU":
        flores.write_bytes(flores.read_bytes() + b"\xa0\x06\x01")  # an unknown field
    else:
        (models / "roberta-large" / "weights").write_text("second")
    settings = {"optional_metrics": OptionalMetrics(selection)}
    with pytest.raises(UserError, match=rf"\(model of {changed}\); choose"):
        evaluate(subject, few, output, **settings)
    replaced = evaluate(subject, few, output, overwrite=True, **settings)
    assert replaced.signatures != result.signatures


def test_missing_folders_are_reported(tmp_path, worker):
    with pytest.raises(UserError, match=r"--bert_score=.*none: no such folder; it holds"):
        BertScore(tmp_path / "none", worker)
    (tmp_path / "t5").mkdir()
    with pytest.raises(UserError, match="takes a path that contains 't5' for a T5 model"):
        BertScore(tmp_path / "t5", worker)
    selection = MetricSelection(metricx=tmp_path / "none", metrics_environment=worker._folder)
    with pytest.raises(UserError, match="--metricx=.*none: no such folder; give that of google/"):
        OptionalMetrics(selection)
