"""Bridge strategies: directions of hand-written groups, MITRE's file, errors, and a cache."""

from __future__ import annotations

import json
import re

import pytest

from mnmt_jax.commands import add_language
from mnmt_jax.commands import languages as languages_command
from mnmt_jax.commands.corpus_flags import corpus_and_directions
from mnmt_jax.commands.count import make_parser
from mnmt_jax.commands.direction_flags import read_directions
from mnmt_jax.commands.vocabulary import main as make_vocabulary
from mnmt_jax.data.cache import TokenCache
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary import bridge_strategy
from mnmt_jax.vocabulary.bridge_strategy import (
    PACKAGED,
    BridgeStrategy,
    Group,
    bridge_directions,
    direction_counts,
    pairs_by_kind,
    read_bridge_strategy,
)
from mnmt_jax.vocabulary.languages import MITRE_GROUPS, MITRE_LANGUAGES, mitre_directions
from tests.run_commands import ROOT, command
from tests.unit import made_text

GROUPS = {"west": Group(("de", "sv", "nl"), ("de", "nl")), "south": Group(("fr", "it"), ("fr",))}
TOY = """\
hub = ["en"]
[groups.west]
languages = ["deu", "sv", "nl"]
bridges = ["de", "nl"]
[groups.south]
languages = ["fr", "it"]
bridges = ["fr"]
"""
SMALL = 'hub = ["en"]\n[groups.all]\nlanguages = ["de", "fr"]\nbridges = []\n'


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((source, target) for source, target in (item.split("-") for item in text.split()))


def _read(tmp_path, text: str) -> BridgeStrategy:
    path = tmp_path / "bridge.toml"
    path.write_text(text, encoding="utf-8")
    return read_bridge_strategy(path)


def test_directions_of_two_groups():
    strategy = BridgeStrategy(("en",), GROUPS)
    assert strategy.languages == ("en", "de", "sv", "nl", "fr", "it")
    assert pairs_by_kind(strategy) == {
        "hub": _pairs("en-de en-sv en-nl en-fr en-it"),
        "inside groups": _pairs("de-sv nl-sv fr-it"),
        "between bridges": _pairs("de-nl de-fr nl-fr"),
        "extra": (),
    }
    assert bridge_directions(strategy) == _pairs(
        "en-de en-sv en-nl en-fr en-it de-sv nl-sv fr-it de-nl de-fr nl-fr "
        "de-en sv-en nl-en fr-en it-en sv-de sv-nl it-fr nl-de fr-de fr-nl"
    )
    assert direction_counts(strategy) == {
        "hub": 10,
        "inside groups": 6,
        "between bridges": 6,
        "extra": 0,
        "training": 22,
        "zero-shot": 8,
        "all": 30,
    }


def test_extra_and_left_out_pairs(tmp_path):
    lists = 'extra_pairs = ["it-swe"]\nleft_out_pairs = ["nl-en", "fr-de"]\n'
    strategy = _read(tmp_path, lists + TOY)
    assert strategy == BridgeStrategy(("en",), GROUPS, _pairs("it-sv"), _pairs("nl-en fr-de"))
    forward = _pairs("en-de en-sv en-fr en-it de-sv nl-sv fr-it de-nl nl-fr it-sv")
    assert bridge_directions(strategy)[:10] == forward
    assert bridge_directions(strategy)[10:] == tuple(pair[::-1] for pair in forward)
    assert direction_counts(strategy)["hub"] == 8
    assert direction_counts(strategy)["extra"] == 2
    assert direction_counts(strategy)["zero-shot"] == 10


def test_several_hub_languages_or_none():
    two_hubs = BridgeStrategy(("en", "es"), {"g": Group(("de", "fr"), ())})
    forward = _pairs("en-es en-de en-fr es-de es-fr")
    assert bridge_directions(two_hubs) == forward + tuple(pair[::-1] for pair in forward)
    no_hub = BridgeStrategy((), GROUPS)
    assert "hub" in pairs_by_kind(no_hub) and pairs_by_kind(no_hub)["hub"] == ()
    assert len(bridge_directions(no_hub)) == 12


def test_mitre_is_a_file():
    strategy = read_bridge_strategy(PACKAGED["mitre"])
    # The constants are read from the file without parsing codes; test_languages.py has the list.
    assert strategy.languages == MITRE_LANGUAGES
    assert {name: group.languages for name, group in strategy.groups.items()} == MITRE_GROUPS
    assert bridge_directions(strategy) == mitre_directions()
    kinds = {kind: len(pairs) for kind, pairs in pairs_by_kind(strategy).items()}
    assert kinds == {"hub": 23, "inside groups": 25, "between bridges": 36, "extra": 13}
    assert direction_counts(strategy)["training"] == 194


def test_the_example_of_the_module_is_a_strategy(tmp_path):
    strategy = _read(tmp_path, bridge_strategy.__doc__.partition("\n\n    ")[2].replace("    ", ""))
    assert strategy.languages == ("en", "de", "sv", "fr", "it")
    assert len(bridge_directions(strategy)) == 14


def test_a_byte_order_mark_is_left_out(tmp_path):
    assert _read(tmp_path, "\ufeff" + TOY) == _read(tmp_path, TOY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hub = [", "is not TOML"),
        ("hub = []", r"'groups' is missing; write a table \[groups.NAME\]"),
        (TOY.partition("\n")[2], r"'hub' is missing; write hub = \[\"en\"\] or \[\]"),
        ("hub = []\ngroups = {}", r"groups: has no group; write a table \[groups.NAME\]"),
        ("hub = []\ngroups = 3", "groups: has no group"),
        ("hub = []\n[groups]\nwest = 3", "groups.west: is not a table; give it the keys languages"),
        ("hubs = []\n" + TOY, "unknown key 'hubs'; did you mean 'hub'"),
        (
            TOY + 'extra_pairs = ["it-sv"]',
            r"groups.south: 'extra_pairs' is no key of a group; move it above \[groups.NAME\]",
        ),
        (TOY.replace('bridges = ["fr"]', ""), "groups.south: 'bridges' is missing; write bridges"),
        (TOY.replace('["en"]', '"en"'), r"hub: 'en' is not a list of texts; write hub = \[\"en\""),
        (TOY.replace('["fr"]', "[1]"), r"groups.south.bridges: \[1\] is not a list of texts"),
        (TOY.replace('["fr", "it"]', "[]"), "groups.south.languages: is empty; name its languages"),
        (TOY.replace('"it"', '"jp"'), "groups.south.languages: unknown language 'jp'"),
        (
            TOY.replace('"it"', '"fra"'),
            "groups.south.languages: 'fr' and 'fra' are one language .*: name each language once",
        ),
        (
            TOY.replace('"it"', '"swe"'),
            "groups.south.languages: 'sv' is in groups.west.languages too; keep it in one of them",
        ),
        (
            TOY.replace('"it"', '"en"'),
            "groups.south.languages: 'en' is in hub too; keep it in one of them",
        ),
        (
            TOY.replace('bridges = ["fr"]', 'bridges = ["de"]'),
            "groups.south.bridges: 'de' is not in the group's languages fr it; add it to them, or",
        ),
        ('extra_pairs = "it-sv"\n' + TOY, "extra_pairs: 'it-sv' is not a list of texts"),
        ('extra_pairs = ["it"]\n' + TOY, "extra_pairs: 'it' must be two codes, such as de-fr"),
        ('extra_pairs = ["it-pt-BR"]\n' + TOY, "'it-pt-BR' must be two codes.*regions as pt_BR"),
        ('extra_pairs = ["it-pl"]\n' + TOY, "extra_pairs: 'it-pl' has 'pl', which is neither in"),
        ('extra_pairs = ["it-ita"]\n' + TOY, "extra_pairs: 'it-ita' has one language twice"),
        (
            'extra_pairs = ["it-sv", "sv-it"]\n' + TOY,
            "extra_pairs: 'sv-it' is listed already, as 'it-sv'; a pair has both directions",
        ),
        ('extra_pairs = ["it-en"]\n' + TOY, r"extra_pairs: 'it-en' exists already \(hub\)"),
        ('extra_pairs = ["it-fr"]\n' + TOY, r"'it-fr' exists already \(inside groups\); remove it"),
        ('extra_pairs = ["fr-nl"]\n' + TOY, r"'fr-nl' exists already \(between bridges\)"),
        ('left_out_pairs = ["it-sv"]\n' + TOY, "left_out_pairs: 'it-sv' is no pair of the hub"),
        (SMALL.replace('"en"', ""), "groups.all: 'de' has no training direction; name a hub"),
        (
            'left_out_pairs = ["en-fr"]\n' + SMALL,
            "groups.all: 'fr' has no training direction; name a hub language or a bridge",
        ),
        (
            'left_out_pairs = ["en-fr", "en-de"]\nextra_pairs = ["de-fr"]\n' + SMALL,
            "hub: 'en' has no training direction",
        ),
        (
            'hub = ["en"]\nextra_pairs = ["pt-en"]\n[groups.a]\nlanguages = ["pt_BR", "pt_PT"]\n'
            "bridges = []",
            "extra_pairs: 'pt-en': language 'pt' is ambiguous: name pt_BR or pt_PT",
        ),
    ],
)
def test_malformed_files_are_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=f"^{re.escape(str(tmp_path))}/bridge.toml: .*{message}"):
        _read(tmp_path, text)


def _list(monkeypatch, capsys, *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["mnmt languages", *arguments])
    languages_command.main()
    return capsys.readouterr().out


def test_the_languages_command_prints_counts_and_directions(monkeypatch, capsys, tmp_path):
    path = tmp_path / "bridge.toml"
    path.write_text(TOY, encoding="utf-8")
    listed = _list(monkeypatch, capsys, "--bridge", str(path))
    lines = listed.splitlines()
    assert lines[0] == "# 6 languages: en de sv nl fr it"
    assert [line.split()[-1] for line in lines[1:8]] == ["10", "6", "6", "0", "22", "8", "30"]
    assert lines[8] == "en-de  # hub" and lines[-1] == "fr-nl  # between bridges"
    (tmp_path / "pairs.txt").write_text(listed, encoding="utf-8")
    directions = bridge_directions(BridgeStrategy(("en",), GROUPS))
    codes = ("en", "de", "sv", "nl", "fr", "it")
    assert read_directions("--trained_on", str(tmp_path / "pairs.txt"), codes) == directions

    facts = json.loads(_list(monkeypatch, capsys, "--bridge=mitre", "--format=json"))
    assert facts["languages"] == list(MITRE_LANGUAGES)
    assert facts["counts"]["training"] == 194 and facts["counts"]["zero-shot"] == 358
    assert list(facts["directions"]) == ["-".join(pair) for pair in mitre_directions()]
    assert facts["directions"]["ms-jv"] == "extra"
    with pytest.raises(UserError, match="^--bridge lists directions; leave out de fr"):
        _list(monkeypatch, capsys, "--bridge=mitre", "de", "fr")
    with pytest.raises(UserError, match="^--bridge=none.toml: no such file; .* or mitre$"):
        _list(monkeypatch, capsys, "--bridge=none.toml")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Write training and validation text in three languages, and a strategy for them."""
    monkeypatch.chdir(tmp_path)
    for split, count in {"train": 60, "validation": 6}.items():
        for code in made_text.LANGUAGES:
            text = "".join(f"{line}\n" for line in made_text.sentences(code, count))
            (tmp_path / f"{split}.{code}").write_text(text, encoding="utf-8")
    made_text.vocabulary().save(tmp_path / "vocabulary")
    (tmp_path / "small.toml").write_text(SMALL, encoding="utf-8")
    return tmp_path


def _cache(*flags: str, languages: str = "en,de,fr") -> TokenCache:
    files = "--parallel=.", f"--languages={languages}", "--name=mine", "--vocabulary=vocabulary"
    command("cache_tasks", *files, *flags, "--output=cache")
    return TokenCache.open("cache")


def test_a_cache_of_own_files_has_the_directions_of_a_strategy(data):
    cache = _cache("--directions=bridge", "--bridge=small.toml", languages="deu_Latn,en,fr")
    trained = ("mine_de_en", "mine_en_de", "mine_en_fr", "mine_fr_en")
    assert sorted(cache.tasks_with("train")) == list(trained)
    assert sorted(cache.tasks_with("validation")) == sorted((*trained, "mine_de_fr", "mine_fr_de"))


@pytest.mark.parametrize(
    ("flags", "languages", "message"),
    [
        (
            ["--directions=bridge"],
            "en,de,fr",
            "^--directions=bridge needs --bridge FILE, or --bridge mitre; .*data.md explains",
        ),
        (["--bridge=small.toml"], "en,de,fr", "^--bridge=small.toml needs --directions bridge$"),
        (
            ["--bridge=small.toml", "--directions=many_to_many"],
            "en,de,fr",
            "^--bridge=small.toml needs --directions bridge$",
        ),
        (
            ["--bridge=small.toml", "--directions=bridge"],
            "en,de",
            "^--bridge=small.toml: has 'fr', which is not among en de; add its text and name it",
        ),
        (
            ["--bridge=mitre", "--directions=bridge"],
            "en,de",
            "^--bridge=mitre: has 'nl', which is not among en de",
        ),
        (["--directions=bridges"], "en,de,fr", "'bridges' must be SOURCE-TARGET.*, bridge$"),
    ],
)
def test_flags_that_do_not_fit_are_refused(data, flags, languages, message):
    with pytest.raises(UserError, match=message):
        _cache(*flags, languages=languages)


def test_two_codes_that_the_text_does_not_tell_apart_are_refused(data):
    (data / "regions.toml").write_text(SMALL.replace('"fr"', '"de_AT", "de_CH"'), encoding="utf-8")
    message = (
        "^--bridge=regions.toml: 'de' and 'de_AT' are both 'de' of the text; name one of them$"
    )
    with pytest.raises(UserError, match=message):
        _cache("--directions=bridge", "--bridge=regions.toml", languages="en,de")


def test_directions_without_text_are_refused_as_with_other_shapes(data):
    (data / "train.fr").unlink()
    with pytest.raises(UserError, match="no training text for en-fr .*left_out_pairs of a --br"):
        _cache("--directions=bridge", "--bridge=small.toml")


@pytest.mark.parametrize(
    ("flags", "context"),
    [
        (["--text=.", "--languages=en"], "text of single languages"),
        (["--mixture=other", "--module_import=math"], "a seqio mixture"),
    ],
)
def test_the_flag_is_refused_where_directions_are(data, flags, context):
    with pytest.raises(UserError, match=f"^--bridge does not apply to {context}"):
        command("cache_tasks", *flags, "--bridge=small.toml", "--output=cache")


def test_other_commands_use_or_refuse_the_flag(data, monkeypatch, capsys):
    flags = ["--mixture=cldr_quickstart", "--directions=bridge", "--bridge=small.toml"]
    _, directions = corpus_and_directions(make_parser().parse_args(flags))
    assert directions == _pairs("en-de en-fr de-en fr-en")
    adopted = ["--sentencepiece=m", "--languages=en", "--bridge=mitre", "--output=v"]
    monkeypatch.setattr("sys.argv", ["mnmt vocabulary", *adopted])
    with pytest.raises(UserError, match="^--bridge does not apply to --sentencepiece"):
        make_vocabulary()
    monkeypatch.setattr(
        "sys.argv", ["mnmt vocabulary", *adopted[:2], "--monolingual", "--output=v"]
    )
    with pytest.raises(UserError, match="^--monolingual does not apply to --sentencepiece"):
        make_vocabulary()
    kept = ["--run=r", "--language=nl", "--output=n", "--keep_pieces", "--bridge=mitre"]
    with pytest.raises(UserError, match="^--bridge does not apply to --keep_pieces"):
        add_language._model(add_language.make_parser().parse_args(kept), made_text.vocabulary())


def test_the_example_of_the_documentation_has_the_counts_it_prints(tmp_path):
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(hub .*?)^```$", page, re.DOTALL | re.MULTILINE)
    strategy = _read(tmp_path, example)
    printed = page.partition(f"# {len(strategy.languages)} languages: ")[2]
    assert printed.startswith(" ".join(strategy.languages))
    counts = re.findall(r"^# ([\w -]+?) +(\d+)$", printed.partition("```")[0], re.MULTILINE)
    assert {kind: int(count) for kind, count in counts} == direction_counts(strategy)
