"""LAVS against the authors' code: counts, flags, rewritten text and the new vocabulary."""

import json

import pytest

from mnmt_jax.vocabulary.lavs import (
    count_used_pieces,
    flag_by_threshold,
    splittable_pieces,
)
from tests.parity.reference import FOLDER, SHIPPED
from tests.segmented_text import count_tokens, mark_copies

FILES = sorted([*FOLDER.glob("lavs*.json"), *FOLDER.glob("methods/lavs*.json")])


def test_reference_figures_exist():
    assert FILES or FOLDER != SHIPPED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lavs_equals_the_authors_code(path):
    known = json.loads(path.read_text(encoding="utf-8"))
    languages, shared, corpora = known["languages"], known["shared_vocab"], known["corpora"]
    files = {language: _files_of(language, corpora, languages) for language in languages}
    counts = {
        language: count_tokens(line for name in names for line in corpora[name])
        for language, names in files.items()
    }
    assert counts == known["counts"] and len(corpora) > 2
    assert len(known["thresholds"]) > 1
    for threshold, expected in known["thresholds"].items():
        flagged = flag_by_threshold(counts, shared, int(threshold))
        assert {code: list(pieces) for code, pieces in flagged.items()} == expected["split_flagged"]
        assert len(shared) + sum(map(len, flagged.values())) == expected["reported_size"]
        split = splittable_pieces(flagged)
        rewritten = {
            name: mark_copies(corpora[name], language, split[language])
            for language, names in files.items()
            for name in names
        }
        assert rewritten == expected["rewritten"]
        others_first = sorted(languages, key=lambda language: language == "en")
        in_order = (
            line for code in others_first for name in files[code] for line in rewritten[name]
        )
        actual = count_tokens(in_order)
        by_count = sorted(actual.items(), key=lambda item: -item[1])
        assert [list(item) for item in by_count] == expected["new_vocab"]
        assert count_used_pieces(counts, split) == len(by_count)


def _files_of(language, corpora, languages):
    """Return the files of a language, ordered by the language of their translation."""
    own = [name for name in corpora if name.endswith(f".{language}")]

    def place(name):
        pair = name.split(".")[1].split("-")[:2]
        return languages.index(next(code for code in pair if code != language))

    return sorted(own, key=place)
