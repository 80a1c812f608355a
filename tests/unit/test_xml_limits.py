"""Small files of XML that would take much memory or time: TMX and XLIFF."""

from __future__ import annotations

import gzip
import re

import pytest

from mnmt_jax.data.translation_files import read_units
from mnmt_jax.errors import UserError
from tests.limited import error_of, run_limited
from tests.unit.test_bitext import ONE

NOTES = "<note/>" * 100_000
AROUND = {
    "a.tmx.gz": ('<tmx><body><tu><tuv xml:lang="en"><seg>a</seg></tuv>', "</tu></body></tmx>"),
    "b.tmx.gz": ("<tmx><body>", "</body></tmx>"),
    "c.xlf.gz": ('<xliff version="2.0"><file><unit>', "</unit></file></xliff>"),
    "d.xlf.gz": ('<xliff version="1.2"><file><group>', "</group></file></xliff>"),
}
READ = """
import sys
from mnmt_jax.data import translation_files
translation_files.MAX_OTHER_BYTES = 32 << 20
print(sum(1 for _ in translation_files.read_units(sys.argv[1])))
"""


def write_around(path, text, times):
    """Write a small compressed file: a text repeated between a beginning and an end."""
    beginning, end = AROUND[path.name]
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(beginning)
        for _ in range(times):
            file.write(text)
        file.write(end)


@pytest.mark.parametrize("name", AROUND)
def test_elements_outside_units_are_freed(tmp_path, name):
    """Elements of a unit count towards its limit; elsewhere only their total is limited."""
    write_around(tmp_path / name, NOTES, 60)
    done = run_limited(READ, tmp_path / name, megabytes=512)
    message = (
        "this unit is too long, more than 4 MiB" if name[0] in "ac" else "32 MiB without a unit"
    )
    assert re.search(rf"{re.escape(name)}(:1)?: {message}; export", error_of(done)), done.stderr


def test_text_between_units_is_freed(tmp_path):
    unit = '<tu><tuv xml:lang="en"><seg>a</seg></tuv></tu>'
    write_around(tmp_path / "b.tmx.gz", f"x{NOTES}x{unit}", 60)
    done = run_limited(READ, tmp_path / "b.tmx.gz", megabytes=512)
    assert done.stdout.strip() == "60", done.stderr


@pytest.mark.parametrize("text", ["&e;", '<note a="&e;"/>'])
def test_an_undeclared_entity_names_its_line(tmp_path, text):
    text = ONE.format("x").replace("<tu>", f"\n<note>{text}</note><tu>")
    (tmp_path / "a.tmx").write_text(text)
    with pytest.raises(UserError, match=r"a\.tmx:2: Entity 'e' not defined; repair the file"):
        list(read_units(str(tmp_path / "a.tmx")))
