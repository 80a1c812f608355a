"""Everything that is cached for a user is below one folder."""

import types
from pathlib import Path

import pytest

from mnmt_jax.data import cache_files
from mnmt_jax.evaluation.metrics_environment import VARIABLE, default_environment
from mnmt_jax.files.local_copies import FOLDER_VARIABLE
from mnmt_jax.interop.tasks import cldr
from mnmt_jax.runtime.compilation_cache import cache_folder


@pytest.mark.parametrize("base", ["named", "home"])
def test_all_caches_are_below_the_users_cache(base, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    if base == "named":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "named"))
        expected = tmp_path / "named/mnmt_jax"
    else:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        expected = tmp_path / "home/.cache/mnmt_jax"
    for variable in (VARIABLE, FOLDER_VARIABLE, cldr.VOCABULARY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    loaded: list[Path] = []
    monkeypatch.setattr(cldr.Vocabulary, "load", lambda folder: loaded.append(Path(folder)))
    monkeypatch.setattr(cldr, "_train", lambda folder: folder.mkdir() or folder)
    cldr.load_vocabulary()
    empty = types.SimpleNamespace(sizes=dict)
    monkeypatch.setattr(cache_files, "BucketReader", lambda url: empty)
    copies = cache_files.BucketFiles(Path("gs://bucket/cache"))._copies
    folders = [cache_folder(), default_environment(), copies.folder, *loaded]
    assert len(folders) == 4
    assert {folder.parent for folder in folders} == {expected}
