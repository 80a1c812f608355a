"""The command `evaluate` on a trained run."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from mnmt_jax import __version__
from mnmt_jax.config.sections import Decode
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.data.parallel_corpora import ParallelFiles
from mnmt_jax.decoding.search_settings import describe_search, with_beam_size
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.evaluation.benchmark import Benchmark
from mnmt_jax.evaluation.evaluate import evaluate
from mnmt_jax.evaluation.evaluated_model import load_evaluated_model
from mnmt_jax.evaluation.result import read_result
from mnmt_jax.evaluation.result_labels import decoding_label, disambiguate_names
from mnmt_jax.training.train import train
from tests import fresh_process, made_run
from tests.unit.made_text import LANGUAGES, sentences, vocabulary

pytestmark = pytest.mark.usefixtures("one_device")

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "evaluate.py"
SENTENCES = 6
SUPERVISED = (("en", "de"), ("de", "en"), ("en", "fr"))


def _cache(directory: Path) -> Path:
    """Write a cache whose task names do not match their directions."""

    def task(number: int, direction: tuple[str, str], *splits: str) -> TaskSource:
        readers = {name: lambda: made_run.random_pairs(20, number) for name in splits}
        return TaskSource(f"made_{direction[1]}_{direction[0]}", *direction, readers)

    tasks = [task(n, pair, "train", "validation") for n, pair in enumerate(SUPERVISED)]
    tasks.append(task(9, ("fr", "en"), "validation"))
    write_cache(directory, tasks, vocabulary=vocabulary())
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Make a folder with a run of a few steps and a small parallel test set."""
    path = tmp_path_factory.mktemp("evaluate")
    decode = {"batch": 4, "max_length": 6, "buckets": (16,), "beam_size": 1}
    changes = {"decode": decode, "train": {"steps": 2, "log_every": 1, "eval_every": 2}}
    changes |= {"model": {"layout": "register"}}
    config = made_run.make_config(_cache(path / "cache"), **changes)
    assert train(config, path / "tiny") is None
    for code in LANGUAGES:
        lines = sentences(code, SENTENCES)
        (path / f"test.{code}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _run(*arguments: object) -> subprocess.CompletedProcess:
    return fresh_process.run("evaluate.py", *arguments)


def test_a_run_is_evaluated_and_the_evaluation_continued(folder):
    files = ("--parallel", folder / "{split}.{language}", "--languages", "en,de,fr,cs")
    # A language that the model does not know.
    (folder / "test.cs").write_text("x\n" * SENTENCES, encoding="utf-8")
    flags = ("--run", folder / "tiny", "--task", "mine", "--output", folder / "out")
    done = _run(*flags, *files)
    assert done.returncode == 0, done.stderr
    assert "skipped languages that the model does not have: cs" in done.stderr
    assert done.stderr.count("chrF++") == 6 and "6/6 " in done.stderr
    assert "means over several target languages are raw; the report has normalized" in done.stderr
    table = done.stdout.splitlines()
    assert table[0].startswith("| model ") and len(table) == 4
    assert "supervised (3)" in table[2] and "zero-shot (3)" in table[3]

    result = read_result(folder / "out")
    assert (result.name, result.layout, result.step) == ("tiny", "register", 2)
    assert result.supervised == set(SUPERVISED)
    assert result.parameters > 1000 and result.seconds > 0
    assert result.version == __version__
    assert {name: len(curve) for name, curve in result.curves.items()} == {
        "train": 2,
        "supervised": 1,
        "zero_shot": 1,
        "from_english": 1,
        "to_english": 1,
    }
    assert result.decoding["checkpoint"] == "step 2" and result.decoding["method"] == "greedy"
    direct = Translator.load(folder / "tiny").translate(
        sentences("de", SENTENCES), source="de", target="fr"
    )
    path = folder / "out" / "translations" / "de-fr.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row["hypothesis"] for row in rows] == direct and any(direct)
    assert [row["reference"] for row in rows] == sentences("fr", SENTENCES)

    fewer = (*flags, *files, "--directions", "zero_shot", "--paper_compatible", "opus100")
    refused = _run(*fewer)
    assert refused.returncode == 2 and "directions: 3 of its 6 would be lost" in refused.stderr
    again = _run(*fewer, "--overwrite")
    assert again.returncode == 0, again.stderr
    assert "3 of 3 directions had been translated before" in again.stderr
    assert "## Averages by the procedure of opus100" in again.stdout.splitlines()
    back = read_result(folder / "out")
    assert [item.direction for item in back.directions] == [
        ("de", "fr"),
        ("fr", "en"),
        ("fr", "de"),
    ]
    assert back.paper["procedure"] == "opus100" and "swapped" in back.paper["label"]
    assert {"bleu", "chrf", "off_target"} >= set(back.paper["averages"]) >= {"bleu", "chrf"}
    assert "As published" in (folder / "out/report.html").read_text(encoding="utf-8")


def test_several_processes_give_the_evaluation_of_one(folder, tmp_path):
    files = ("--parallel", folder / "{split}.{language}", "--languages", "en,de,fr")
    flags = ("--run", folder / "tiny", "--task", "mine", *files)
    assert _run(*flags, "--output", tmp_path / "alone").returncode == 0
    shared = (*flags, "--output", tmp_path / "shared", "--num_processes=2")
    first = _run(*shared, "--process_id=1")
    assert first.returncode == 0 and first.stdout == ""
    assert (
        "3/3 " in first.stderr
        and "of 2 has finished its directions, other processes have 3 left" in first.stderr
    )
    assert not (tmp_path / "shared" / "scores.json").exists()
    last = _run(*shared, "--process_id=0")
    assert last.returncode == 0 and "6 of 6 directions had been translated before" in last.stderr
    actual, expected = (read_result(tmp_path / name) for name in ("shared", "alone"))
    assert actual.directions == expected.directions and len(actual.directions) == 6


def test_an_explicit_beam_is_used_and_recorded(folder, tmp_path):
    files = ("--parallel", folder / "{split}.{language}", "--languages", "en,de")
    flags = ("--run", folder / "tiny", "--task", "mine", "--output", tmp_path)
    done = _run(*flags, *files, "--beam_size=3", "--lid=langdetect")
    assert done.returncode == 0, done.stderr
    assert "Off-target (langdetect)" in done.stdout
    result = read_result(tmp_path)
    assert result.signatures["off_target_lid"].startswith("langdetect|seed:0")
    decoding = result.decoding
    assert (decoding["method"], decoding["beam_size"]) == ("beam", 3)
    path = tmp_path / "translations" / "en-de.jsonl"
    actual = [json.loads(line)["hypothesis"] for line in path.read_text("utf-8").splitlines()]
    flags = {"source": "en", "target": "de"}
    beam = Translator.load(folder / "tiny", bindings=["Decode.beam_size=5"])
    assert actual == beam.translate(sentences("en", SENTENCES), beam_size=3, **flags)
    greedy = Translator.load(folder / "tiny")
    sizes = [
        {len(t.hypotheses) for t in greedy.translate_nbest(["one two"], beam_size=size, **flags)}
        for size in (None, 1, 3)
    ]
    assert sizes == [{1}, {1}, {3}]


def test_contrast_and_pivot_are_recorded_and_named(folder, tmp_path):
    files = ("--parallel", folder / "{split}.{language}", "--languages", "en,de,fr")
    where = ("--run", folder / "tiny", "--task", "mine", "--directions", "zero_shot")
    flags_of = {
        "plain": [],
        "other": ["--pivot=en", "--pivot_prompt", "--gin.Decode.source_contrast=0.5"],
    }
    for name, flags in flags_of.items():
        done = _run(*where, *files, "--output", tmp_path / name, *flags)
        assert done.returncode == 0, done.stderr
        # Of de-fr, fr-en and fr-de, the second has the pivot as target.
        notice_count = done.stderr.count("1 direction from or into en: translated directly")
        assert notice_count == len(flags[:1])
    plain, other = (read_result(tmp_path / name).decoding for name in flags_of)
    contrast = {"source_contrast": 0.5, "seed": 0}
    assert other == {**plain, **contrast, "pivot": "en", "pivot_prompt": True}
    assert "- pivot: en" in (tmp_path / "other" / "table.md").read_text("utf-8").splitlines()
    path = tmp_path / "other" / "translations" / "fr-de.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    actual = Translator.load(folder / "tiny").translate_nbest(
        sentences("fr", SENTENCES), source="fr", target="de", pivot="en", source_contrast=0.5
    )
    assert [row["pivot"] for row in rows] == [t.pivot for t in actual]
    assert [row["hypothesis"] for row in rows] == [t.text for t in actual]
    where = (*(tmp_path / name for name in flags_of), "--output", tmp_path / "page.html")
    done = fresh_process.run("compare.py", *where)
    assert done.returncode == 0, done.stderr
    names = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:4]]
    assert names == [
        "tiny (register)",
        "tiny, source_contrast=0.5, pivot=en, pivot_prompt=True (register)",
    ]


def test_an_unknown_pivot_is_refused_before_anything_is_written(folder, tmp_path):
    flags = ("--run", folder / "tiny", "--task", "cldr_quickstart", "--output", tmp_path / "none")
    done = _run(*flags, "--pivot=xx")
    assert done.returncode == 2 and "--pivot=xx: the model has no such language" in done.stderr
    assert not (tmp_path / "none").exists()


def test_the_recorded_search_settings_are_those_used(folder):
    config = Translator.load(folder / "tiny").config.decode
    assert (config.method, config.beam_size) == ("greedy", 1)
    assert describe_search(config)["beam_size"] == 1
    assert not {"top_p", "weights"} & describe_search(config).keys()  # those that are stored
    wide = describe_search(with_beam_size(config, 4))
    assert (wide["method"], wide["beam_size"]) == ("beam", 4)
    sampled = with_beam_size(Decode(temperature=1.0, weights="int8"), 3)
    described = {"method": "sample", **dataclasses.asdict(sampled)}
    off = {"source_contrast", "language_contrast", "contrast_languages", "copy_unknown", "averaged"}
    off |= {"epsilon_cutoff", "ensemble", "beam_groups", "diversity_penalty", "utility"}
    assert describe_search(sampled) == {k: v for k, v in described.items() if k not in off}
    assert (sampled.method, sampled.beam_size) == ("sample", 3)


def test_the_fingerprint_covers_parameters_vocabulary_and_instruction(folder):
    subject, _ = load_evaluated_model(folder / "tiny")
    other, _ = load_evaluated_model(folder / "tiny", bindings=["Data.instruction='2'"])
    extra = json.loads(next((folder / "tiny/checkpoints/2/extra").iterdir()).read_text())
    assert subject.identity == {
        "parameters": extra["fingerprints"]["params"],
        "vocabulary": vocabulary().fingerprint,
        "instruction": "1",
    }
    assert other.identity == subject.identity | {"instruction": "2"}


def test_decoding_without_tags_is_recorded_and_named(folder, tmp_path):
    """Table 8 of the language-specific layers paper: trained with tags, decoded without."""
    corpus = ParallelFiles("mine", str(folder / "{split}.{language}"), ("de", "fr"))
    benchmark = Benchmark("mine", corpus, limit=2)
    results = []
    for name, bindings in {"with": [], "without": ["Data.instruction='none'"]}.items():
        subject, _ = load_evaluated_model(folder / "tiny", bindings=bindings)
        results.append(evaluate(subject, benchmark, tmp_path / name))
    with_tags, without = (read_result(tmp_path / name) for name in ("with", "without"))
    assert without.decoding == {**with_tags.decoding, "instruction": "none"}
    assert without.decoding_overrides == {"instruction": "none"}
    assert not with_tags.decoding_overrides
    assert [each.name for each in disambiguate_names(results)] == ["tiny", "tiny, instruction=none"]
    assert decoding_label(without) == f"{decoding_label(with_tags)}, instruction=none"


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--task", "nothing"], "no such corpus or mixture; for files of your own add --parallel"),
        (["--task", "x", "--parallel", "no/{split}.{language}"], "--parallel needs --languages"),
        (["--task", "cldr", "--on_bad_line", "drop"], "--on_bad_line does not apply to the built"),
        (["--task", "cldr", "--languages", "en,xx"], "--languages: xx is not in cldr: en"),
        (["--task", "x", "--tsv", "a", "--splits", "dev=a"], "--splits=dev=a: name test too"),
        (["--task", "x", "--tsv", "a", "--parallel", "b"], "not allowed with argument"),
        (["--task", "cldr", "--limit", "-1"], "argument --limit: '-1' must be a whole"),
        (["--task", "cldr", "--pivot_prompt"], "a pivot; add --pivot"),
        (["--task", "cldr", "--lid_model", "lid.176"], "lid.176 is the first detector; name ano"),
        (["--task", "cldr", "--run", "nowhere"], "nowhere/config.gin: no such file"),
        (["--task", "cldr", "--directions", "best"], "or write all, supervised, zero_shot"),
    ],
)
def test_invalid_arguments_are_one_error_line(folder, tmp_path, arguments, message):
    done = _run("--run", folder / "tiny", "--output", tmp_path / "out", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
    assert "Traceback" not in done.stderr


def test_reranking_by_an_untrained_direction_is_a_warning(folder, capfd):
    for bindings, expected in (
        (["Decode.utility='backward'"], "warning: Decode.utility='backward' ranks by fr-en, which"),
        ([], ""),
    ):
        model, _ = load_evaluated_model(folder / "tiny", bindings=bindings, beam_size=2)
        model.check_directions([("en", "de"), ("en", "fr"), ("de", "en")])
        assert expected in (text := capfd.readouterr().err) and bool(expected) == bool(text)
    model, _ = load_evaluated_model(
        folder / "tiny", bindings=["Decode.utility='backward'"], beam_size=2, pivot="en"
    )
    model.check_directions([("de", "fr"), ("de", "en")])
    assert "ranks by fr-en, which" in capfd.readouterr().err  # and by en-de, of each first search
