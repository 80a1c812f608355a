"""Recipes of preparation: packaged ones, hostile files, and the table of steps in the docs."""

import dataclasses
import math
import re
import runpy
import string
import types
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax.data.preparation import duplicates, recipes, transforms
from mnmt_jax.data.preparation.histograms import write_histogram
from mnmt_jax.data.preparation.recipe_files import FOLDER, recipe_names
from mnmt_jax.data.preparation.recipes import STEPS, parse_step, read_recipe
from mnmt_jax.data.preparation.steps import KeyRule, PairBatch, PairRule, PieceRule, Step, Transform
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.language_detectors import find_detector
from tests.slow_steps import drops_of, made_batch

ROOT = Path(__file__).parents[2]
BATCH = made_batch(1500)
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def apply(recipe, batch: PairBatch) -> list[tuple[str, str]]:
    """Apply a recipe to pairs whose pieces are their words."""
    for step in recipe.steps:
        if isinstance(step, Transform):
            sides = zip((batch.sources, batch.targets), batch.direction, strict=True)
            sources, targets = (step.apply(*side) for side in sides)
            batch = PairBatch(sources, targets, batch.direction)
            continue
        if isinstance(step, KeyRule):
            kept = ~np.array(drops_of(step.keys(batch)[:, 0].tolist()), bool)
        elif isinstance(step, PieceRule):
            pairs = zip(batch.sources, batch.targets, strict=True)
            kept = step.keeps(np.array([[len(x.split()), len(y.split())] for x, y in pairs]))
        else:
            assert isinstance(step, PairRule)
            kept = step.keeps(batch)
        chosen = np.flatnonzero(kept).tolist()
        sources, targets = batch.sources, batch.targets
        batch = PairBatch(
            [sources[row] for row in chosen], [targets[row] for row in chosen], batch.direction
        )
    return list(zip(batch.sources, batch.targets, strict=True))


def test_packaged_recipes_are_read():
    assert recipe_names() == ("ec40", "multiun", "nllb_mitre", "opus100_two_stage", "plain")
    for name in recipe_names():
        recipe = read_recipe(name)
        assert recipe.name == name and recipe.title and recipe.note and recipe.steps
        assert bool(recipe.source) == (name != "plain")
        assert f"| `{name}` |" in PAGE
    assert read_recipe(FOLDER / "plain.toml") == read_recipe("plain")


def test_recipes_are_packaged(monkeypatch):
    arguments = {}
    setuptools = types.SimpleNamespace(
        setup=arguments.update,
        find_packages=lambda **_: [],
        find_namespace_packages=lambda **_: [],
    )
    monkeypatch.setitem(__import__("sys").modules, "setuptools", setuptools)
    monkeypatch.chdir(ROOT / "docs")  # no build/lib to remove
    runpy.run_path(str(ROOT / "setup.py"))
    patterns = arguments["package_data"]["mnmt_jax.data.preparation"]
    files = {path for pattern in patterns for path in recipes.FOLDER.parent.glob(pattern)}
    assert files == {*recipes.FOLDER.iterdir()}


def test_the_mitre_recipe_is_the_published_script(tmp_path, monkeypatch):
    """Compare with the shell pipeline, written as one loop over lines."""
    monkeypatch.chdir(tmp_path)
    frequent = {"en": "abcde агдия世界", "ja": "abcde агдияあい世界"}
    Path("histograms").mkdir()
    for code, characters in frequent.items():
        write_histogram(Path("histograms", code), [characters * 2, "]"])
    lines, expected = dict.fromkeys(zip(BATCH.sources, BATCH.targets, strict=True)), []
    marks = string.punctuation + "—|–"
    for pair in lines:
        if not all(sum(c in marks for c in side) < 0.5 * len(side) for side in pair):
            continue
        sides = zip(pair, BATCH.direction, strict=True)
        shares = [sum(c in frequent[code] for c in side) / (len(side) + 1) for side, code in sides]
        few, many = sorted(len(side.split()) for side in pair)
        if min(shares) > 0.5 and 1 <= few and many <= 250 and many / few <= 3:
            expected.append(pair)
    assert apply(read_recipe("nllb_mitre"), BATCH) == expected
    assert 20 < len(expected) < len(lines)


def test_results_depend_on_files_and_versions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("histograms").mkdir()
    for code in ("de", "en"):
        write_histogram(Path("histograms", code), ["ab"])
    recipe = read_recipe("nllb_mitre")
    before = recipe.dependencies(["de", "en"])
    assert before.keys() == {"Unicode", "regex", "histograms/de", "histograms/en"}
    assert before["Unicode"] == unicodedata.unidata_version
    write_histogram(Path("histograms", "en"), ["ac"])
    after = recipe.dependencies(["de", "en"])
    assert [name for name in before if before[name] != after[name]] == ["histograms/en"]
    entries = [{"step": name} for name in ("language", "moses", "segment", "near_duplicates")]
    monkeypatch.setattr(duplicates, "version", lambda package: f"{package} 9")
    monkeypatch.setattr(transforms, "version", lambda package: f"{package} 9")
    steps = [parse_step(entry) for entry in entries]
    assert [step.dependencies(["de", "zh"]) for step in steps] == [
        {"language detector": find_detector("lid.176").signature},
        {"sacremoses": "sacremoses 9"},
        {"jieba": "jieba 9"},
        {"datasketch": "datasketch 9"},
    ]
    assert steps[2].dependencies(["de"]) == {}


def test_the_plain_recipe_by_hand():
    pairs = {
        ("Two  days ago", "Vor zwei Tagen"): True,
        ("Two days ago", "Vor zwei Tagen "): False,
        ("...", "Vor zwei Tagen"): False,
        ("Two days ago", "Vor zwei \ufffd"): False,
        ("Two days ago", "a"): False,
        ("Malta", "Malta"): True,
        ("", "a"): False,
        ("a " * 1100, "b " * 1100): False,
    }
    batch = PairBatch([x for x, _ in pairs], [y for _, y in pairs], ("en", "de"))
    kept = apply(read_recipe("plain"), batch)
    assert kept == [("Two days ago", "Vor zwei Tagen"), ("Malta", "Malta")]


def subclasses(cls):
    return {cls}.union(*map(subclasses, cls.__subclasses__()))


def test_every_step_is_in_recipes_and_documented():
    concrete = {
        cls
        for cls in subclasses(Step)
        if cls.__module__.startswith("mnmt_jax") and hasattr(cls, "name")
    }
    assert {*STEPS.values()} == concrete and len(STEPS) > 20
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    documented = {row[0].strip("| `"): row for row in rows if len(row) > 2}
    for name, step in STEPS.items():
        row = documented[name]
        assert row[1] == step.title(), name
        for field in dataclasses.fields(step):
            assert f"`{field.name}" in row[2], (name, field.name)


def written(tmp_path, steps: str, head: str = 'title = "T"\n') -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(head + steps, encoding="utf-8")
    return path


def step(text: str) -> str:
    return f"[[steps]]\n{text}\n"


def test_the_recipe_of_the_page(tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    recipe = read_recipe(written(tmp_path, text, ""))
    names = [step.name for step in recipe.steps]
    assert names == ["normalize", "script", "source_duplicates", "piece_length"]


def test_a_recipe_of_a_file(tmp_path):
    entry = 'step = "script"\nmin_share = 1\nscripts = { sr = ["Latn", "Cyrl"] }'
    recipe = read_recipe(written(tmp_path, step(entry), 'title = "T"\nnote = """a\n  b"""\n'))
    assert (recipe.name, recipe.source, recipe.note) == ("mine", "", "a b")
    script = recipe.steps[0]
    assert script == STEPS["script"](1.0, {"sr": ("Latn", "Cyrl")})
    assert isinstance(script.min_share, float)
    assert read_recipe(written(tmp_path, "steps = []", "")) == recipes.Recipe(
        "mine", "mine", "", "", ()
    )
    with pytest.raises(UserError, match="histograms/de: No such file"):
        nllb = read_recipe("nllb_mitre")
        nllb.check_languages(["de"])


WRONG = {
    'step = "lenght"': r"step 1: step = 'lenght' must be the name .* did you mean 'length'\? ",
    "step = 3": "step 1: step = 3 must be the name of a step; .*scale.md lists them",
    "": "step 1: lacks step, its name; ",
    'step = "length"\nmax_word = 3': r"step 1: length: no setting 'max_word'; did you mean 'max_w",
    'step = "punctuation_only"\nx = 3': "step 1: punctuation_only: no setting 'x'; it has none",
    'step = "length_ratio"': "step 1: length_ratio: lacks max_ratio",
    'step = "length_ratio"\nmax_ratio = "3"': "length_ratio: max_ratio = '3' must be a number",
    'step = "length_ratio"\nmax_ratio = nan': "length_ratio: max_ratio = nan must be a number, 1",
    'step = "length_ratio"\nmax_ratio = inf': "length_ratio: max_ratio = inf must be a number, 1",
    'step = "length_ratio"\nmax_ratio = true': "length_ratio: max_ratio = True must be a number",
    'step = "length_ratio"\nmax_ratio = 0.5': "max_ratio = 0.5 must be a number, 1 or more",
    'step = "length_ratio"\nmax_ratio = 2\nunit = "x"': "unit = 'x' must be one of characters, wo",
    'step = "length"\nmax_words = 2.0': "length: max_words = 2.0 must be an integer",
    'step = "length"\nmax_words = true': "length: max_words = True must be an integer",
    f'step = "length"\nmax_words = {2**31}': "length: max_words = 2147483648 must be an integer of",
    f'step = "length_ratio"\nmax_ratio = {10**400}': "max_ratio = 1.* must be a number of at most",
    'step = "length"\nmin_words = -1': "length: min_words = -1 must be 0 or more",
    'step = "length"\nmin_words = 5\nmax_words = 4': r"max_words = 4 must be min_words \(5\) or m",
    'step = "copies"\nignore_case = 1': "copies: ignore_case = 1 must be true or false",
    'step = "moses"\nlanguages = "en"': r"moses: languages = .en. must be a list of texts, such",
    'step = "moses"\nlanguages = ["eng"]': r"moses: languages = .* must be the codes en$",
    'step = "moses"\nlanguages = ["xx yy"]': "moses: languages: unknown language 'xx yy'",
    'step = "script"\nscripts = { sr_Cyrl = ["Cyrl"] }': "scripts = .* must be the codes sr$",
    'step = "moses"\nlanguages = [1]': r"moses: languages = \[1\] must be a list of texts",
    'step = "script"\nscripts = ["Latn"]': r"scripts = \['Latn'\] must be a table of lists",
    'step = "script"\nscripts = { sr = "Latn" }': "scripts.sr = 'Latn' must be a list of texts",
    'step = "script"\nscripts = { sr = ["Lat)n"] }': "script: scripts = .* must be codes of ISO",
    'step = "script"\nscripts = { sr = [] }': "script: scripts = .* must be codes of ISO 15924",
    'step = "script"\nmin_share = 1.5': "min_share = 1.5 must be a number from 0 to 1",
    'step = "unreadable"\nmax_characters = -1': "max_characters = -1 must be 0 or more",
    'step = "numbers"\nmax_different = -1': "max_different = -1 must be 0 or more",
    'step = "repeated_ngrams"\nn = 0': "n = 0 must be from 1 to 100",
    'step = "repeated_ngrams"\nmax_count = 0': "max_count = 0 must be 1 or more",
    'step = "score"\ncolumn = ""\nminimum = 1': "column = '' must be the name of a score",
    'step = "histogram"\nfolder = ""': "folder = '' must be a folder of histograms",
    'step = "histogram"\nfolder = "x"\nfrequency_limit = "ab"': "frequency_limit = 'ab' must be o",
    'step = "language"\nlid_model = ""': "lid_model = '' must be a detector",
    'step = "near_duplicates"\nbands = 0': "bands = 0 must be 1 or more",
    'step = "near_duplicates"\nbands = 600\nrows = 2': "rows = 2 must be 1 or less with 600 bands",
    'step = "piece_length"\nmax_pieces = 0': r"max_pieces = 0 must be min_pieces \(1\) or more",
    'step = "normalize"\nform = "NFD"': "form = 'NFD' must be one of NFC, NFKC, none",
    'step = "piece_ratio"\nmax_ratio = 3\n[[steps]]\nstep = "copies"': (
        "step 2: copies comes after piece_ratio, a rule on pieces; move"
    ),
}


@pytest.mark.parametrize("entry", WRONG)
def test_wrong_steps_are_one_line_with_file_step_and_field(tmp_path, entry):
    path = written(tmp_path, step(entry))
    with pytest.raises(UserError, match=WRONG[entry]) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: step ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "is not TOML"),
        ('steps = "x"\ntitle = "T"', "lacks steps; write"),
        ('steps = ["x"]\ntitle = "T"', "lacks steps; write"),
        ('title = "T"', "lacks steps; write"),
        ("title = 3\nsteps = []", "title = 3 must be a text in quotes"),
        ('title = "T"\nsource = ["a"]\nsteps = []', "source = .* must be a text in quotes"),
        ('title = "T"\nsteps = []\nstep = 3', "unknown field 'step'; fields are title, source, n"),
        ("x = " + "[" * 100_000, "is not TOML"),
        ("x = " + "1" * 10_000, "is not TOML"),
        ('title = "\\ud800"', "is not TOML"),
    ],
)
def test_wrong_files_are_one_line(tmp_path, text, message):
    path = written(tmp_path, text, "")
    with pytest.raises(UserError, match=message) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_missing_recipes_are_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no recipe 'plane'; did you mean 'plain'\? name one of"):
        read_recipe("plane")
    with pytest.raises(UserError, match=": no such file; name one of"):
        read_recipe(tmp_path)
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not TOML"):
        read_recipe(tmp_path / "x.toml")


def test_settings_of_python_are_checked_like_those_of_files():
    with pytest.raises(UserError, match="score: minimum = nan must be a number"):
        STEPS["score"]("laser", math.nan)
    assert parse_step({"step": "score", "column": "laser", "minimum": 1}).minimum == 1.0
