"""A language added to a run: unchanged parameters, new rows, and errors."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.cache_writer import TaskSource, reused_tasks, write_cache
from mnmt_jax.data.document_context import SEPARATOR, Context
from mnmt_jax.data.document_corpus import check_separator
from mnmt_jax.decoding import translate_lines as lines_module
from mnmt_jax.decoding.encoded_lines import Line
from mnmt_jax.decoding.translate_lines import score_lines
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.design.method import Method
from mnmt_jax.errors import UserError
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.exporting import export_checkpoint
from mnmt_jax.interop.importing import import_checkpoint
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.methods.graft import Graft
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.new_language import NewRows, add_language, grown_table
from mnmt_jax.runs.new_run import write_run
from mnmt_jax.runs.parameters import load_params
from mnmt_jax.runs.run_directory import RunDirectory
from mnmt_jax.vocabulary.sentencepiece_options import SentencePieceOptions
from mnmt_jax.vocabulary.sentencepiece_training import train_sentencepiece
from mnmt_jax.vocabulary.user_defined_symbols import user_defined_symbols
from mnmt_jax.vocabulary.vocabulary import Vocabulary
from tests import made_foreign
from tests.applied import apply
from tests.made_params import assert_same
from tests.run_commands import command
from tests.toy_heads import ENDS, TABLES
from tests.unit import made_text
from tests.unit.test_additions import TEXT, grown, listed, model

TASKS = {"made_en_de": ("en", "de"), "made_de_en": ("de", "en")}
CONTEXTS = {"made_en_de": Context(64)}
LEARNED = {"positions": ("learned", 32)}
TINY = {"embed": 16, "mlp": 24, "heads": 2}
BRANCHES = LanguageLayers(made_text.LANGUAGES, without=("en",), layers=(2,), mlp=6)
MODELS = {
    "branches": Model("encoder_decoder", (1, 1), methods=(BRANCHES,), **TINY),
    "heads": Model("prefix", (1,), vocab_size=63, **(ENDS | TINY | LEARNED)),
}
LOGITS_ATOL = 1e-6


def make_run(
    folder: Path,
    model: Model,
    vocabulary: Vocabulary | None = None,
    frozen: tuple[str, ...] = (),
) -> Path:
    """Write a run at step 0 with random parameters and zero rows for padding."""
    vocabulary = vocabulary or made_text.vocabulary()
    rng = np.random.default_rng(3)
    shapes = parameter_shapes(model, vocabulary.size)
    params = jax.tree.map(lambda a: rng.normal(0, 0.3, a.shape).astype(np.float32), shapes)
    for name in params:
        if name.endswith("embedding"):
            params[name][0] = 0
    instruction = "5" if model.layout == "encoder_decoder" else "1"
    data = Data(cache="old", tasks=tuple(TASKS), instruction=instruction)
    train = Train(methods=(Graft((("a", "embedding", "embedding"),)),))
    config = Config(
        data, model, Optimizer(frozen=frozen), train, Decode(buckets=(32,), batch=4), Mesh()
    )
    tree = jax.tree.map(LazyArray.of, params)
    record = {"origin": ("nobody", "random"), "tasks": TASKS, "contexts": CONTEXTS}
    write_run(folder, config, vocabulary, tree, **record)
    return folder


def logits_of(run: Path, languages: list[tuple[str, str]], monkeypatch) -> np.ndarray:
    """Return the logits of a few references of these directions."""
    actual = []

    def score(params, batch, *, model, **settings):
        actual.append(apply(model, params, batch))
        return np.zeros(len(languages))

    monkeypatch.setattr(lines_module, "score_batch", score)
    inference_model = Translator.load(run)._inference_model
    lines = [
        Line(number, made_text.sentence(number + 4, source), source, target)
        for number, (source, target) in enumerate(languages)
    ]
    references = [made_text.sentence(n + 4, target) for n, (_, target) in enumerate(languages)]
    score_lines(inference_model, lines, references, Decode(batch=len(lines), buckets=(32,)))
    (logits,) = actual
    return logits


@pytest.mark.parametrize("kind", MODELS)
def test_logits_of_old_directions_are_unchanged(kind, tmp_path, monkeypatch):
    run, new = make_run(tmp_path / "run", MODELS[kind]), tmp_path / "new"
    before = Vocabulary.load(run / "vocabulary")
    add_language(run, new, grown(before))
    after = Vocabulary.load(new / "vocabulary")
    directions = [("en", "de"), ("de", "fr"), ("fr", "en")]
    expected, actual = (logits_of(folder, directions, monkeypatch) for folder in (run, new))
    ids = [*range(before.first_tag), *(after.tag_id(code) for code in before.languages)]
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(actual[..., ids], expected, atol=LOGITS_ATOL)


@pytest.mark.parametrize("kind", MODELS)
def test_language_independent_parameters_are_copied(kind, tmp_path):
    run, new = make_run(tmp_path / "run", MODELS[kind]), tmp_path / "new"
    vocabulary = grown()
    add_language(run, new, vocabulary)
    (before, _), (after, step) = load_params(run), load_params(new)
    assert step == 0
    tables = TABLES if kind == "heads" else ("embedding",)
    rows = []
    for name in tables:
        table = after.pop(name)
        rows.append(table[-1])
        expected = grown_table(
            name, before.pop(name), made_text.vocabulary(), vocabulary, NewRows()
        )
        np.testing.assert_array_equal(table, expected)
        assert table.shape == (vocabulary.size, 16) and not table[0].any()
    assert len({row.tobytes() for row in rows}) == len(rows)  # noise of its own each
    if kind == "branches":
        (old, branch) = (tree["layer_1"]["mlp"].pop("branch") for tree in (before, after))
        for name in ("first/kernel", "first/bias", "second/kernel", "second/bias", "scale"):
            one, other = old, branch
            for key in name.split("/"):
                one, other = one[key], other[key]
            np.testing.assert_array_equal(other[:2], one)
            np.testing.assert_allclose(other[2:], [one.mean(axis=0)], atol=1e-7)
    assert_same(after, before)
    config, was = RunDirectory(new).config(), RunDirectory(run).config()
    (method,) = config.model.methods
    if kind == "branches":
        languages = (*made_text.LANGUAGES, "nl")
        assert method == dataclasses.replace(BRANCHES, languages=languages, frozen=("de", "fr"))
        assert method.slots == (-1, 0, 1, 2)
    assert config.model.vocab_size in (0, vocabulary.size)
    assert (config.model.vocab_size == 0) == (kind == "branches")
    assert config.train.methods == ()  # a graft is done when a run is made
    # Another cache is needed, and all of its tasks are to be learnt.
    assert config.data == dataclasses.replace(was.data, cache="", tasks=())
    assert RunDirectory(new).trained_tasks() == TASKS
    assert RunDirectory(new).trained_contexts() == CONTEXTS
    assert "language 'nl' added" in RunDirectory(new).origin_file.read_text()


def test_new_rows_are_drawn_around_the_mean_embedding():
    before, vocabulary = listed(), grown(listed())
    rng = np.random.default_rng(0)
    table = rng.normal(0, 1, (before.size, 256)).astype(np.float32)
    table[0] = 0
    table[~before.appears_in_text] += 100  # <s> and fillers, which no text reaches
    real = [i for i, real in enumerate(before.appears_in_text) if real]
    mean = np.mean([table[i] for i in real], axis=0)

    def new(**settings):
        actual = grown_table("embedding", table, before, vocabulary, NewRows(**settings))
        np.testing.assert_array_equal(actual[: before.first_tag], table[: before.first_tag])
        for code in before.languages:
            row, was = actual[vocabulary.tag_id(code)], table[before.tag_id(code)]
            np.testing.assert_array_equal(row, was)
        assert len(actual) == vocabulary.size
        return actual[[*range(before.first_tag, vocabulary.first_tag), -1]] - mean

    np.testing.assert_allclose(new(noise=0.0), 0, atol=1e-5)
    new_rows = new()
    assert len(new_rows) == len(vocabulary.added_pieces) + 1 > 8
    np.testing.assert_allclose(new_rows.std(), 0.1 / 16, rtol=0.05)
    np.testing.assert_allclose(new(noise=2.0, distribution="uniform").std(), 2 / 16, rtol=0.05)
    assert np.abs(new(noise=2.0, distribution="uniform")).max() <= 2 / 16 * 3**0.5 + 1e-5
    assert np.abs(new(noise=2.0)).max() > 2 / 16 * 3**0.5
    np.testing.assert_array_equal(new(), new_rows)
    assert np.abs(new(seed=1) - new_rows).min(axis=1).max() > 0


def test_a_method_without_resize_param_is_refused(tmp_path, monkeypatch):
    run, new = make_run(tmp_path / "run", MODELS["branches"]), tmp_path / "new"
    monkeypatch.setattr(LanguageLayers, "resize_param", Method.resize_param)
    with pytest.raises(
        UserError, match=r"layer_1/mlp/branch.*language_layers.*Method.resize_param"
    ):
        add_language(run, new, grown())
    assert not new.exists()


PREFIX = Model("prefix", (1,), **TINY)
GRAFTED = Model("grafted", (1, 1, 1), methods=(Graformer(encoder_layers=1),), **TINY)


@pytest.mark.parametrize(
    ("model", "frozen", "message"),
    [
        (
            PREFIX,
            ("embed*",),
            r"Optimizer.frozen=\('embed\*',\) freezes 'embedding', .* of 'nl' could",
        ),
        (
            dataclasses.replace(PREFIX, lora_rank=2),
            (),
            "Model.lora_rank=2 freezes .*merge its LoRA",
        ),
        (GRAFTED, (), "Graformer.decoder='freeze' freezes 'target_embedding', .*Train.steps=0"),
    ],
)
def test_a_run_that_freezes_its_tables_is_refused(model, frozen, message, tmp_path):
    """No training of the new run could change the rows of the language."""
    run = make_run(tmp_path / "run", model, frozen=frozen)
    with pytest.raises(UserError, match=f"^{tmp_path}/run: {message}") as refused:
        add_language(run, tmp_path / "new", grown())
    assert not (tmp_path / "new").exists()
    in_bucket = RunDirectory(run, types.SimpleNamespace(bucket=run))  # flags read no bucket
    remedy = rf"; (merge|copy {run}/config.gin to a folder first, then .*--gin_file=config.gin )"
    with pytest.raises(UserError, match=remedy):
        add_language(in_bucket, tmp_path / "new", grown())
    with pytest.raises(UserError, match="(merge --|--initialize_)step=0"):
        add_language(run, tmp_path / "new", grown(), step=0)
    flags = [flag.replace('"', "") for flag in re.findall(r"--gin\.(\S+)", str(refused.value))]
    config = load_config([str(run / "config.gin")], flags)
    trains = dataclasses.replace(config.model, lora_rank=0)  # LoRA is merged
    copy = make_run(tmp_path / "copy", trains, frozen=config.optimizer.frozen)
    add_language(copy, tmp_path / "new", grown())


FOREIGN = {
    "m2m100": made_foreign.m2m100_directory,
    "nllb": made_foreign.nllb_directory,
    "mitre": made_foreign.mitre_directory,
    "transformer_cll": lambda folder: made_foreign.fairseq_checkpoint(folder, "transformer_cll"),
}


def imported(kind: str, folder: Path) -> tuple[str, Path, Vocabulary]:
    """Return the format and run of a generated checkpoint, and its vocabulary."""
    format_ = "fairseq" if kind == "transformer_cll" else "huggingface"
    FOREIGN[kind](folder / "theirs")
    name = "checkpoint.pt" if format_ == "fairseq" else ""
    import_checkpoint(format_, folder / "theirs" / name, folder / "run")
    return format_, folder / "run", Vocabulary.load(folder / "run" / "vocabulary")


@pytest.mark.parametrize("kind", ["m2m100", "mitre"])
def test_languages_are_added_to_imported_checkpoints(kind, tmp_path):
    format_, run, before = imported(kind, tmp_path)
    new, out = tmp_path / "new", tmp_path / "out"
    add_language(run, new, grown(before, "qq"))
    after = Vocabulary.load(new / "vocabulary")
    text = [*made_text.sentences("fr", 3), TEXT[2]]
    assert after.encode_lines(text, before.languages[2]) == before.encode_lines(text)
    assert [after.decode(after.encode(line, "qq")) for line in TEXT[:9]] == list(TEXT[:9])
    old, params = load_params(run)[0]["embedding"], load_params(new)[0]["embedding"]
    assert RunDirectory(new).config().model.vocab_size == len(params) == after.size
    for code in before.languages[::7]:
        np.testing.assert_array_equal(params[after.tag_id(code)], old[before.tag_id(code)])
    np.testing.assert_array_equal(params[: before.first_tag], old[: before.first_tag])
    with pytest.raises(UserError, match="text of qq .*--format t5x"):
        export_checkpoint(format_, new, out)
    export_checkpoint("t5x", new, out)
    import_checkpoint("t5x", out, tmp_path / "again")
    assert_same(load_params(tmp_path / "again")[0], load_params(new)[0])
    assert Vocabulary.load(tmp_path / "again" / "vocabulary").fingerprint == after.fingerprint


@pytest.mark.parametrize("kind", ["nllb", "transformer_cll"])
def test_without_new_pieces_the_model_can_be_exported(kind, tmp_path):
    """There is a single SentencePiece model then, as in the toolkits."""
    format_, run, before = imported(kind, tmp_path)
    new, out = tmp_path / "new", tmp_path / "out"
    add_language(run, new, before.with_language("qq"))
    export_checkpoint(format_, new, out)
    again = out / "checkpoint.pt" if format_ == "fairseq" else out
    import_checkpoint(format_, again, tmp_path / "again")
    assert_same(load_params(tmp_path / "again")[0], load_params(new)[0])
    after = Vocabulary.load(tmp_path / "again" / "vocabulary")
    assert after.languages == (*before.languages, "qq")
    if kind == "nllb":
        tags = json.loads((out / "added_tokens.json").read_text())
        assert "deu_Latn" in tags and "__qq__" in tags
    else:
        (method,) = RunDirectory(tmp_path / "again").config().model.methods
        assert method.slots == (-1, 0, 1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run of three languages, their cache, and parallel text of a fourth and the first."""
    folder = tmp_path_factory.mktemp("new_language")
    make_run(folder / "run", MODELS["heads"])
    for code in made_text.LANGUAGES:
        text = "\n".join(made_text.sentences(code, 20)) + "\n"
        (folder / f"train.{code}").write_text(text, encoding="utf-8")
    (folder / "dutch").mkdir()
    for code, text in (("en", made_text.sentences("en", 300)), ("nl", TEXT)):
        (folder / "dutch" / f"train.{code}").write_text("\n".join(text) + "\n", encoding="utf-8")
    return folder


def test_the_command_and_its_caches(folder, tmp_path, capsys):
    new, dutch = tmp_path / "new", ("--parallel", folder / "dutch", "--languages", "en,nl")
    flags = ("--run", folder / "run", "--language", "nl", "--output", new)
    command("add_language", *flags, *dutch, "--vocab_size", 33, "--noise", 0)
    summary = json.loads(capsys.readouterr().out)
    vocabulary = Vocabulary.load(new / "vocabulary")
    assert vocabulary.fingerprint == grown().fingerprint  # of Dutch alone
    assert summary == {
        "output": str(new),
        "languages": ["en", "de", "fr", "nl"],
        "size_before": 63,
        "size": vocabulary.size,
        "new_pieces": vocabulary.size - 64,
    }
    rows = load_params(new)[0]["output_embedding"][63 - 3 : vocabulary.first_tag]
    np.testing.assert_array_equal(rows, rows[:1].repeat(len(rows), axis=0))

    def cache(name: str, *arguments: object) -> TokenCache:
        command("cache_tasks", "--output", tmp_path / name, *arguments)
        return TokenCache.open(tmp_path / name)

    text = ("--parallel", folder / "{split}.{language}", "--languages", "en,de,fr")
    old = cache("old", *text, "--vocabulary", folder / "run" / "vocabulary")
    anew = cache("anew", *text, "--vocabulary", new / "vocabulary")
    also = ("--vocabulary", new / "vocabulary", "--also", tmp_path / "old", "--name", "dutch")
    both = cache("both", *dutch, *also)
    assert list(both.tasks) == [*old.tasks, "dutch_en_nl", "dutch_nl_en"]
    for name, task in old.tasks.items():
        assert task == both.tasks[name] == anew.tasks[name]  # content too
        for side in (0, 1):
            pairs = [cached.pair(name, "train", 7)[side].tolist() for cached in (old, both, anew)]
            assert pairs[0] == pairs[1] == pairs[2]
    english, own = both.pair("dutch_en_nl", "train", 5)
    assert english.tolist() == made_text.vocabulary().encode(made_text.sentence(6, "en"))
    assert own.tolist() == vocabulary.encode(TEXT[5], "nl")
    with pytest.raises(UserError, match="both: its vocabulary is neither"):
        next(reused_tasks(both, old.vocabulary))
    with pytest.raises(UserError, match="'corpus_en_de' occurs twice"):
        cache("twice", *text, "--vocabulary", new / "vocabulary", "--also", tmp_path / "old")


def test_text_of_another_variety_is_not_given_the_new_tag(tmp_path):
    """`de` has the tag of `de_AT` until the vocabulary grows by `de`."""
    made = made_text.vocabulary()
    languages = tuple("de_AT" if code == "de" else code for code in made.languages)
    vocabulary = dataclasses.replace(made, languages=languages)
    pairs = [([1, 2], [3, 4])]
    source = TaskSource("made_en_de", "en", "de", {"train": lambda: pairs})
    cache = write_cache(tmp_path, [source], vocabulary=vocabulary)
    assert [task.name for task in reused_tasks(cache, vocabulary)] == ["made_en_de"]
    message = "'made_en_de' has the tag of de_AT for 'de', which has another in --vocabulary"
    with pytest.raises(UserError, match=message):
        next(reused_tasks(cache, vocabulary.with_language("de")))


def test_a_second_language_can_be_added(folder, tmp_path):
    flags = ("--run", folder / "run", "--keep_pieces", "--language")
    command("add_language", *flags, "nl", "--output", tmp_path / "one")
    assert load_params(tmp_path / "one")[0]["output_embedding"].shape == (64, 16)
    text = ("--parallel", folder / "dutch", "--languages", "en,nl", "--vocab_size", 33)
    further = ("--run", tmp_path / "one", "--language", "it", "--output", tmp_path / "two")
    tsv = tmp_path / "train.tsv"
    lines = zip(made_text.sentences("en", 300), TEXT, strict=True)
    tsv.write_text("en\tit\n" + "".join(f"{one}\t{two}\n" for one, two in lines), "utf-8")
    with pytest.raises(UserError, match="no training text in this language; it has en nl"):
        command("add_language", *further, *text)
    command("add_language", *further, "--tsv", tsv, "--vocab_size", 33)
    vocabulary = Vocabulary.load(tmp_path / "two" / "vocabulary")
    assert vocabulary.languages == ("en", "de", "fr", "nl", "it")
    assert vocabulary.encode(TEXT[0], "it") != vocabulary.encode(TEXT[0], "nl")


def test_user_defined_symbols_stay_pieces(folder, tmp_path):
    """They have ids already, so --vocab_size does not count them."""
    text = {code: made_text.sentences(code, 300) for code in made_text.LANGUAGES}
    symbols = ("\n", "<sep,here>", SEPARATOR, "ö")
    options = SentencePieceOptions(vocab_size=60, byte_fallback=False, symbols=symbols)
    old = train_sentencepiece(text, None, options=options)
    assert sorted(user_defined_symbols(old)) == sorted(symbols)
    make_run(tmp_path / "run", MODELS["heads"], old)
    flags = ("--run", tmp_path / "run", "--language", "nl", "--output", tmp_path / "new")
    command("add_language", *flags, "--parallel", folder / "dutch", "--languages", "en,nl",
        "--vocab_size", 33)  # fmt: skip
    vocabulary = Vocabulary.load(tmp_path / "new" / "vocabulary")
    check_separator(Context(9), vocabulary)
    for symbol in symbols[1:]:
        line = f"één{symbol}twee"
        (token,) = (i for i, piece in old.encode_as_pieces(f"e{symbol}e", "en") if piece == symbol)
        assert token in vocabulary.encode(line, "nl")
        assert vocabulary.decode(vocabulary.encode(line, "nl")) == line
    assert len(Vocabulary(vocabulary.sentencepiece_model_for("nl"), ()).model_pieces) == 33 + 4
    grown_before = old.with_language("nl", model())  # its model has no symbols
    check_separator(Context(9), grown_before, ("en", "de"))
    for languages in (None, ("en", "nld")):
        with pytest.raises(UserError, match=f"--separator={SEPARATOR}: .* no piece .* in 'nl"):
            check_separator(Context(9), grown_before, languages)


@pytest.mark.parametrize("is_text", [True, False])
def test_monolingual_text_trains_the_pieces(folder, tmp_path, monkeypatch, is_text):
    """`--text` reads one file, `--monolingual` a side of parallel ones."""
    texts = []

    def train(text, options, *, space_first, uncounted_pieces):
        texts.append({code: list(lines) for code, lines in text.items()})
        raise UserError("trained")

    monkeypatch.setattr("mnmt_jax.vocabulary.sentencepiece_training.train_model", train)
    files = ("--text", f"{folder / 'dutch'}/{{split}}.{{language}}", "--languages", "nl")
    if not is_text:
        files = ("--parallel", folder / "dutch", "--languages", "en,nl", "--monolingual")
    flags = ("--run", folder / "run", "--language", "nl", "--output", tmp_path / "new")
    with pytest.raises(UserError, match="trained"):
        command("add_language", *flags, *files)
    lines = list(TEXT if is_text else dict.fromkeys(TEXT))
    assert texts == [{"nl": lines}]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--language=de", "--keep_pieces"], "language 'de' is in the vocabulary already"),
        (["--language=deu_Latn", "--keep_pieces"], "language 'de' is in the vocabulary already"),
        (["--language=nl"], "no text in 'nl': give --text, --parallel, .* or --keep_pieces"),
        (["--language=n l", "--keep_pieces"], "--language=n l: unknown language"),
        (["--language=nl", "--keep_pieces", "--vocab_size=9"], "--vocab_size does not apply"),
        (["--language=nl", "--keep_pieces", "--mixture=x"], "--mixture does not apply"),
        (["--language=nl", "--keep_pieces", "--text=x"], "--text does not apply"),
        (["--language=nl", "--keep_pieces", "--monolingual"], "--monolingual does not apply"),
        (["--language=nl", "--keep_pieces", "--byte_fallback"], "--byte_fallback: no such flag"),
        (
            ["--language=nl", "--mixture=cldr_quickstart"],
            "no training text in this language; it has en de",
        ),
        (["--language=nl", "--keep_pieces", "--noise=-1"], "--noise=-1 must be at least 0"),
        (["--language=nl", "--keep_pieces", "--step=7"], "no checkpoint 7"),
        (["--language=nl", "--keep_pieces", "--run=nowhere"], "nowhere/config.gin: no such file"),
    ],
)
def test_invalid_arguments_are_one_error_line(folder, tmp_path, flags, message):
    with pytest.raises(UserError, match=message) as caught:
        command("add_language", "--run", folder / "run", "--output", tmp_path / "new", *flags)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_run_that_cannot_learn_it_is_refused_before_pieces_are_trained(
    folder, tmp_path, monkeypatch
):
    def train(*_, **__):
        pytest.fail("pieces were trained")

    monkeypatch.setattr("mnmt_jax.vocabulary.sentencepiece_training.train_model", train)
    run = make_run(tmp_path / "run", dataclasses.replace(PREFIX, lora_rank=2))
    text = ("--parallel", folder / "dutch", "--languages", "en,nl")
    with pytest.raises(UserError, match="merge its LoRA"):
        command("add_language", "--run", run, "--language=nl", "--output", tmp_path / "new", *text)


def test_an_existing_output_is_kept(folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="already exists; choose another --output"):
        flags = ("--run", folder / "run", "--language", "nl", "--keep_pieces")
        command("add_language", *flags, "--output", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
