"""`mnmt prepare`: what it prints, its page, and wrong flags."""

from __future__ import annotations

import json
import re

import pytest

from mnmt_jax.commands import prepare
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.data.preparation.prepare import _locked_work
from mnmt_jax.errors import OutageError, UserError
from tests.unit import made_text

NORMAL = "form = 'NFC', spaces = True"
IGNORED = "ignore_case = False, ignore_punctuation = False"
RECIPE = """\
title = "Made <text>"
note = "Repeats & copies."
[[steps]]
step = "normalize"
[[steps]]
step = "copies"
[[steps]]
step = "pair_duplicates"
"""


@pytest.fixture
def flags(tmp_path):
    """Files with a blank line, two copies and three repeated pairs."""
    english, german = (made_text.sentences(code, 30) for code in ("en", "de"))
    for code, lines in (("en", english), ("de", german)):
        text = [*lines, *lines[:3], "same", "same too", "" if code == "de" else "x"]
        (tmp_path / f"train.{code}").write_text("\n".join(text) + "\n", encoding="utf-8")
    made_text.vocabulary().save(tmp_path / "vocabulary")
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    values = {
        "recipe": tmp_path / "recipe.toml",
        "parallel": tmp_path / "{split}.{language}",
        "languages": "en,de",
        "on_bad_line": "drop",
        "vocabulary": tmp_path / "vocabulary",
        "output": tmp_path / "cache",
        "processes": 1,
    }
    return [f"--{name}={value}" for name, value in values.items()]


def test_it_prints_what_each_step_dropped_and_writes_a_page(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    prepare.main()
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert rows == [
        ["reading: blank 1", "36", "1", "2.78%"],
        [
            "1. normalize: Unicode normalization and single spaces (form = 'NFC', spaces = True)",
            "–",
            "–",
            "–",
        ],
        [f"2. copies: Target equals source ({IGNORED})", "35", "2", "5.71%"],
        [f"3. pair_duplicates: Repeated pair ({IGNORED})", "33", "3", "9.09%"],
        ["kept", "30", "", ""],
    ]
    page = (tmp_path / "cache" / "preparation.html").read_text(encoding="utf-8")
    assert "Made &lt;text&gt;" in page and "Repeats &amp; copies." in page
    assert page.count(">same too<") == 2  # both sides of the dropped pair
    assert made_text.sentence(1, "en") in page and made_text.sentence(4, "en") not in page
    assert "train: 60 in all" in page  # both directions


SCORED = """\
title = "Scored"
[[steps]]
step = "score"
column = "laser"
minimum = 20
"""


@pytest.fixture
def scored(flags, tmp_path):
    """Text whose second line is bad, and the number of each line as its score."""
    (tmp_path / "recipe.toml").write_text(SCORED, encoding="utf-8")
    text = (tmp_path / "train.de").read_text(encoding="utf-8").splitlines()
    (tmp_path / "train.de").write_text("\n".join([text[0], "", *text[2:]]), encoding="utf-8")
    scores = tmp_path / "train.en-de.laser"
    scores.write_text("".join(f"{n}\n" for n in range(1, 37)), encoding="utf-8")
    return [*flags, f"--scores=laser={tmp_path}/{{split}}.{{pair}}.laser"], scores


def test_scores_belong_to_lines(scored, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *scored[0]])
    prepare.main()
    assert re.search(r"1. score: .* 34 .* 18 ", capsys.readouterr().out)  # lines 1, 3, ..., 19
    cache = TokenCache.open(tmp_path / "cache")
    source, _ = cache.pair("corpus_en_de", "train", 0)
    assert made_text.vocabulary().decode(source.tolist()) == made_text.sentence(20, "en")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1\n" * 30,
            "train.en-de.laser: fewer lines than the text, which has 31 and more; write",
        ),
        ("1\n" * 37, "train.en-de.laser: 37 lines, but the text has 36; write a score for each"),
        ("1\ngood\n", "train.en-de.laser:2: 'good' is not a number"),
        (None, "train.*laser: no such file; --scores needs one for each pair"),
    ],
)
def test_wrong_scores_are_refused(scored, monkeypatch, text, message):
    flags, path = scored
    path.write_text(text, encoding="utf-8") if text else path.unlink()
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    with pytest.raises(UserError, match=message):
        prepare.main()


@pytest.mark.parametrize(
    ("laser", "quality", "message"),
    [
        (36, 37, "laser: 36 lines, but .*quality has more; write a score for each line of the"),
        (37, 36, "quality: 36 lines, but .*laser has more; write a score for each line of the"),
        (36, 30, "quality: 30 lines, but .*laser has more; write a score for each line of the"),
        (30, 30, "laser, .*quality: fewer lines than the text, which has 31 and more; write"),
        (37, 37, "laser, .*quality: 37 lines, but the text has 36; write a score for each line"),
    ],
)
def test_two_scores_have_the_lines_of_the_text(
    scored, tmp_path, monkeypatch, laser, quality, message
):
    flags, path = scored
    (tmp_path / "recipe.toml").write_text(
        SCORED + SCORED.partition("\n")[2].replace("laser", "quality")
    )
    path.write_text("1\n" * laser)
    path.with_suffix(".quality").write_text("1\n" * quality)
    more = f"--scores=quality={tmp_path}/{{split}}.{{pair}}.quality"
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, more])
    with pytest.raises(UserError, match=f"^{tmp_path}.*{message}"):
        prepare.main()


def test_scores_of_both_orders_are_refused(scored, monkeypatch):
    flags, path = scored
    path.with_name("train.de-en.laser").touch()
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    with pytest.raises(UserError, match="en-de.laser, .*de-en.laser: are of the same pair; remove"):
        prepare.main()


def test_one_file_of_scores_is_not_that_of_several_pairs(scored, tmp_path, monkeypatch, capsys):
    flags, path = scored
    path.rename(tmp_path / "laser")
    flags = [*flags[:-1], f"--scores=laser={tmp_path}/laser"]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    prepare.main()  # both directions of one pair
    assert re.search(r"1. score: .* 34 .* 18 ", capsys.readouterr().out)
    (tmp_path / "train.fr").write_text("".join(f"{n}\n" for n in range(36)), encoding="utf-8")
    more = ["--languages=en,de,fr", "--directions=en-de,fr-en,en-fr", "--overwrite"]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, *more])
    message = (
        f"^--scores=laser={tmp_path}/laser: is one file for the text of de-en, en-fr; name one "
        "for each, with {pair} in its name$"
    )
    with pytest.raises(UserError, match=message):
        prepare.main()


def test_languages_without_a_tag_are_refused_before_any_work(flags, tmp_path, monkeypatch):
    (tmp_path / "train.it").write_text("uno\n" * 36, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, "--languages=en,it"])
    with pytest.raises(UserError, match="language 'it' has no tag in this vocabulary"):
        prepare.main()
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, "--monolingual"])
    with pytest.raises(UserError, match="no pairs to prepare; use 'mnmt cache'"):
        prepare.main()
    assert not (tmp_path / "cache.unfinished").exists()


def test_an_error_in_the_text_names_the_flags_of_the_next_call(flags, tmp_path, monkeypatch):
    remedies = (
        r"--on_bad_line=drop .*; after changing text or flags, add --overwrite to replace \S*"
    )
    for flag, message in (
        ("--on_bad_line=error", rf"train.de:36: .*{remedies}cache.unfinished$"),
        ("--on_bad_line=drop", "another preparation .*--overwrite"),
    ):
        monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, flag])
        with pytest.raises(UserError, match=message):
            prepare.main()
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, "--overwrite"])
    prepare.main()
    assert (tmp_path / "cache").exists()


def test_missing_validation_text_is_said_as_by_the_command_of_caches(
    flags, tmp_path, monkeypatch, capsys
):
    for code in ("en", "de"):
        (tmp_path / f"dev.{code}").write_text("one\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    prepare.main()
    said = capsys.readouterr().err
    assert "no validation text is read; if your files call it 'dev', give --splits " in said
    assert "no validation split: training will not report a validation loss" in said
    more = ["--splits=train=train,validation=dev", "--overwrite"]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, *more])
    prepare.main()
    assert "no validation" not in capsys.readouterr().err


def test_a_zero_shot_task_without_a_pair_is_an_error_as_in_the_command_of_caches(
    flags, tmp_path, monkeypatch
):
    for code in ("de", "fr"):
        (tmp_path / f"validation.{code}").write_text("\n\n", encoding="utf-8")
    (tmp_path / "train.fr").write_text("".join(f"{n}\n" for n in range(36)), encoding="utf-8")
    more = ["--languages=en,de,fr", "--directions=en-de,en-fr"]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, *more])
    with pytest.raises(UserError, match="^task 'corpus_de_fr' has no examples; check the corpus"):
        prepare.main()


def test_the_result_is_readable_by_programs(flags, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    prepare.main()
    facts = json.loads((tmp_path / "cache" / "preparation.json").read_text(encoding="utf-8"))
    assert (facts["recipe"], facts["steps"][1]) == ("recipe", f"2. copies ({IGNORED})")
    (item,) = facts["text"]
    assert item["dropped"] == {"2. copies": 2, "3. pair_duplicates": 3}
    assert (item["languages"], item["read"], item["kept"]) == ("de-en", 35, 30)
    assert item["unclean"] == {"blank": 1}


def test_scores_and_recipes_fit_together(scored, tmp_path, monkeypatch):
    flags, _ = scored
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags[:-1]])
    with pytest.raises(UserError, match="needs the score 'laser'; add --scores laser=PATTERN"):
        prepare.main()
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    with pytest.raises(UserError, match="--scores=laser: no step of the recipe reads it; leave"):
        prepare.main()
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, flags[-1]])
    with pytest.raises(UserError, match="--scores=laser: is named twice; leave one out"):
        prepare.main()
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, "--scores=laser"])
    with pytest.raises(UserError, match="--scores=laser: write NAME=PATTERN, e.g. laser=data/"):
        prepare.main()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--runner=beam", "--processes=2"], "--processes is of --runner=local; give Beam its own"),
        (["--", "--runner=FlinkRunner"], "--runner=FlinkRunner: flags after '--' are Beam's; add"),
        (["FlinkRunner"], "unexpected 'FlinkRunner'; lists are written with commas, and arg"),
    ],
)
def test_flags_of_the_other_runner_are_refused(flags, monkeypatch, more, message):
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, *more])
    with pytest.raises(UserError, match=f"^{message}"):
        prepare.main()


def test_text_is_written_without_a_vocabulary(flags, tmp_path, monkeypatch, capsys):
    left_out = ("--vocabulary", "--output")
    kept = [flag for flag in flags if not flag.startswith(left_out)]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *kept, f"--text_output={tmp_path / 'clean'}"])
    prepare.main()
    names = {path.name for path in (tmp_path / "clean").iterdir()}
    assert names == {"train.de-en.de", "train.de-en.en", "preparation.html", "preparation.json"}
    text = (tmp_path / "clean" / "train.de-en.en").read_text(encoding="utf-8")
    assert text == "".join(f"{line}\n" for line in made_text.sentences("en", 30))
    assert f"Text: {tmp_path / 'clean'}, 2 files" in capsys.readouterr().err
    with pytest.raises(
        UserError, match="clean: already exists; choose another --text_output or pass"
    ):
        prepare.main()
    (tmp_path / "other.unfinished").mkdir()
    (tmp_path / "other.unfinished" / "mine").touch()
    for name, message in (("other", "has files of something else; move"), (".", "is the current")):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["mnmt prepare", *kept, f"--text_output={name}"])
        with pytest.raises(UserError, match=f"{message}.* another --text_output"):
            prepare.main()


def test_a_vocabulary_that_no_step_reads_is_refused(flags, evaluation, tmp_path, monkeypatch):
    """The recipe of `evaluation` has a rule on pieces, which is not for text to evaluate on."""
    assert evaluation[0] == flags[0]  # the recipe
    vocabulary = f"--vocabulary={tmp_path / 'vocabulary'}"
    parallel = f"--parallel={tmp_path}/{{split}}.{{language}}"
    cases = [[*evaluation, vocabulary, parallel]]
    (tmp_path / "plain.toml").write_text(RECIPE, encoding="utf-8")
    left_out = ("--output", "--recipe")
    kept = [flag for flag in flags if not flag.startswith(left_out)]
    cases.append([*kept, f"--recipe={tmp_path / 'plain.toml'}", f"--text_output={tmp_path / 'a'}"])
    for case in cases:
        monkeypatch.setattr("sys.argv", ["mnmt prepare", *case])
        with pytest.raises(UserError, match=r"^--vocabulary=\S+: text is .*; leave it out$"):
            prepare.main()


def test_a_cache_needs_a_vocabulary(flags, monkeypatch):
    kept = [flag for flag in flags if not flag.startswith("--vocabulary")]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *kept])
    with pytest.raises(UserError, match="--output needs --vocabulary; 'mnmt vocabulary' makes one"):
        prepare.main()
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *kept, "--text_output=clean"])
    with pytest.raises(UserError, match="--text_output: not allowed with argument --output"):
        prepare.main()


CHANGING = """\
[[steps]]
step = "normalize"
form = "NFKC"
[[steps]]
step = "length"
max_words = 1
[[steps]]
step = "pair_duplicates"
[[steps]]
step = "piece_length"
max_pieces = 1
"""


@pytest.fixture
def evaluation(tmp_path):
    """Flags of text to evaluate on, which no rule of the recipe would keep; no training text."""
    for split, count in (("validation", 2), ("test", 3)):
        for code in ("en", "de"):
            text = "".join(f"ﬁne  day {code}\n" for _ in range(count))
            (tmp_path / f"{split}.{code}").write_text(text, encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(CHANGING, encoding="utf-8")
    values = {"recipe": "recipe.toml", "evaluation_text": "clean"}
    flags = [f"--{name}={tmp_path / value}" for name, value in values.items()]
    return [*flags, "--languages=en,de", "--processes=1"]


@pytest.mark.parametrize(
    ("pattern", "more", "sizes"),
    [
        ("{split}.{language}", [], {"validation": 2, "test": 3}),
        ("{split}.{language}", ["--directions=en-de"], {"validation": 2, "test": 3}),
        ("validation.{language}", [], {"test": 2}),
    ],
)
def test_text_to_evaluate_on_is_changed_and_keeps_its_lines(
    evaluation, tmp_path, monkeypatch, capsys, pattern, more, sizes
):
    flags = [*evaluation, f"--parallel={tmp_path / pattern}", *more]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    prepare.main()
    said = capsys.readouterr()
    rows = [line.split("|")[1].split(":")[0].strip() for line in said.out.splitlines()[2:]]
    assert rows == ["reading", "1. normalize", "kept"]
    assert said.out.splitlines()[-1].split("|")[2].strip() == f"{sum(sizes.values())}"
    texts = {path.name: path.read_text("utf-8") for path in (tmp_path / "clean").glob("*.de-en.*")}
    assert texts == {
        f"{split}.de-en.{code}": f"fine day {code}\n" * size
        for split, size in sizes.items()
        for code in ("de", "en")
    }


def test_splits_to_evaluate_on_are_those_that_are_named(evaluation, tmp_path, monkeypatch):
    """Commands name a training split too; the default is both splits."""
    for code in ("en", "de"):
        (tmp_path / f"validation.{code}").rename(tmp_path / f"dev.{code}")
        (tmp_path / f"test.{code}").unlink()
    flags = [*evaluation, f"--parallel={tmp_path}/{{split}}.{{language}}"]
    for splits, message in (
        ("train=train", "^--splits=train=train: name validation or test too$"),
        ("validation=dev,test=test", r"^--splits: test=test: no files match .* leave the split"),
    ):
        monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, f"--splits={splits}"])
        with pytest.raises(UserError, match=message):
            prepare.main()
    splits = "train=train,validation=dev"
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, f"--splits={splits}"])
    prepare.main()
    names = {path.name for path in (tmp_path / "clean").glob("*.de-en.*")}
    assert names == {"validation.de-en.de", "validation.de-en.en"}


def test_a_recipe_that_changes_no_text_prepares_none_to_evaluate_on(
    evaluation, tmp_path, monkeypatch
):
    (tmp_path / "recipe.toml").write_text('[[steps]]\nstep = "copies"\n', encoding="utf-8")
    flags = [*evaluation, f"--parallel={tmp_path}/{{split}}.{{language}}"]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    with pytest.raises(UserError, match="recipe 'recipe' changes no text; evaluate on the files"):
        prepare.main()


def test_directions_without_text_to_evaluate_on_are_refused(evaluation, tmp_path, monkeypatch):
    (tmp_path / "test.fr-en.fr").write_text("un\n", encoding="utf-8")
    (tmp_path / "test.fr-en.en").write_text("one\n", encoding="utf-8")
    (tmp_path / "test.de-en.de").write_text("eins\n", encoding="utf-8")
    (tmp_path / "test.de-en.en").write_text("one\n", encoding="utf-8")
    flags = [*evaluation, f"--parallel={tmp_path}/{{split}}.{{pair}}.{{language}}"]
    flags += ["--languages=en,de,fr", "--directions=en-fr,de-fr"]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags])
    with pytest.raises(
        UserError, match="no validation or test text for de-fr; leave the direction"
    ):
        prepare.main()


def test_a_builtin_mixture_has_text_to_evaluate_on(evaluation, tmp_path, monkeypatch):
    flags = [flag for flag in evaluation if not flag.startswith("--languages")]
    more = ["--mixture=cldr_quickstart", "--directions=en-de"]
    monkeypatch.setattr("sys.argv", ["mnmt prepare", *flags, *more])
    prepare.main()
    names = {path.name for path in (tmp_path / "clean").glob("*.de-en.*")}
    assert names == {f"{s}.de-en.{code}" for s in ("validation", "test") for code in ("de", "en")}


def test_an_outage_stays_one_that_the_same_command_continues(tmp_path):
    work = _locked_work(tmp_path / "work", {}, False, print, "--output")
    with pytest.raises(OutageError, match="^no answer$"), work:
        raise OutageError("no answer")
