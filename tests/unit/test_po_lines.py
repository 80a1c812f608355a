"""Syntax checks of PO lines, which polib does not do."""

import re

import pytest

from mnmt_jax.data.po_validation import MAX_TEXT_LINES, po_line_error
from mnmt_jax.data.text_reader import MAX_LINE_BYTES
from mnmt_jax.data.translation_files import read_units
from mnmt_jax.errors import UserError
from tests.unit.test_bitext import PO, write


def test_a_missing_quote_in_a_po_file_is_an_error(tmp_path):
    """The line is named for each missing quote."""
    removed = 0
    for number, line in enumerate(PO.splitlines(), start=1):
        ends = line.find('"'), line.rfind('"')
        for end in () if line.startswith("#") or ends[0] < 0 else ends:
            lines = PO.splitlines()
            lines[number - 1] = line[:end] + line[end + 1 :]
            write(tmp_path, de_po="\n".join(lines))
            with pytest.raises(
                UserError, match=rf"de\.po:{number}: (no|neither|text) .*; repair the"
            ):
                list(read_units(str(tmp_path / "de.po")))
            removed += 1
    assert removed == 2 * 17


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        ('msgstr "Speichern house 1', "no closing quote"),
        ('msgstr Speichern red 0"', "no opening quote after msgstr"),
        ("msgid", "no opening quote after msgid"),
        ("msgstr[1] 'x'", r"no opening quote after msgstr\[1\]"),
        ('msgstr "', "no closing quote"),
        (r'msgstr "C:\"', "no closing quote"),
        (r'"a\\"b"', "text after the closing quote"),
        ('msgid "a" "b"', "text after the closing quote"),
        ('msgid_plurals "a"', "neither a comment nor a keyword"),
        ("house", "neither a comment nor a keyword"),
        (r'msgid "say \"yes\" \\"', "^$"),
        (r'  "\"" ', "^$"),
        ('msgid\t""\r\n', "^$"),
        ('msgstr[0]"x"', "^$"),
        ('#~ msgid "a', "^$"),
        ('#| msgid "a', "^$"),
        ("# it's \"a", "^$"),
        ("\f", "^$"),
    ],
)
def test_syntax_of_po_lines(line, flaw):
    assert re.match(flaw, po_line_error(line))


@pytest.mark.parametrize("charset", ["iso-8859-1", "UTF-8", "utf-8-sig", "CHARSET", "hex", "utf-7"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_files_written_by_polib_are_read(tmp_path, charset, end):
    """In the file's own encoding, or UTF-8 where it declares none that is supported."""
    polib = pytest.importorskip("polib")
    po_file = polib.POFile(wrapwidth=20)
    po_file.metadata = {"Language": "de", "Content-Type": f"text/plain; charset={charset}"}
    texts = ['"quoted" \\', "C:\\", "ü" * 50 + " ü" * 50, "a\tb\nc\u2028d\x85e", 'x"', "\\n", "#"]
    texts = [text for text in texts if charset != "iso-8859-1" or "\u2028" not in text]
    po_file += [polib.POEntry(msgid=f"{n} {t}", msgstr=t, comment=t) for n, t in enumerate(texts)]
    path = tmp_path / "a.po"
    encoding = {"CHARSET": "utf-8-sig", "hex": "utf-8", "utf-7": "utf-8"}.get(charset, charset)
    path.write_bytes(str(po_file).replace("\n", end).encode(encoding))
    read = [unit.texts["de"] for unit in read_units(str(path))]
    assert read == [" ".join(text.split()) for text in texts]


HEADER = 'msgid ""\nmsgstr "Language: de\\n"\n'


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('msgid ""\n' + '"abc "\n' * (MAX_TEXT_LINES + 1), f"more than {MAX_TEXT_LINES} lines"),
        ("# a comment\n\n" * (MAX_TEXT_LINES + 1), f"more than {MAX_TEXT_LINES} lines"),
        ("#~ a comment\n" * (MAX_TEXT_LINES + 1), f"more than {MAX_TEXT_LINES} lines"),
        (f'msgid "{"a" * MAX_LINE_BYTES}"\n', f"more than {MAX_LINE_BYTES} characters"),
        ("#" * (MAX_LINE_BYTES + 1), f"more than {MAX_LINE_BYTES} characters"),
    ],
    ids=["text", "comments", "obsolete", "line", "long comment"],
)
def test_entries_have_a_size_limit(tmp_path, more, message):
    """polib joins the lines of a text one by one: 400,000 took a minute."""
    write(tmp_path, de_po=HEADER + more)
    with pytest.raises(UserError, match=rf"de\.po:\d+: .*{message}; repair the file"):
        list(read_units(str(tmp_path / "de.po")))


def test_many_entries_and_blank_lines_are_accepted(tmp_path):
    entry = '#~ msgid "a"\n#~ msgstr "b"\n' + "\n" * 10
    write(tmp_path, de_po=HEADER + entry * (MAX_TEXT_LINES // 4))
    assert len(list(read_units(str(tmp_path / "de.po")))) == MAX_TEXT_LINES // 4
    write(tmp_path, fr_po=HEADER + "\n" * (3 * MAX_TEXT_LINES) + 'msgid "a"\nmsgstr "b"\n')
    assert len(list(read_units(str(tmp_path / "fr.po")))) == 1
