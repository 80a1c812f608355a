"""WMT24++: the English test text of WMT 2024 in 55 languages and varieties.

FOLDER/en-de_DE.jsonl    {"source": ..., "target": ..., "is_bad_source": false, ...}

Source: Deutsch et al., "WMT24++: Expanding the Language Coverage of WMT24 to 55 Languages &
Dialects", 2025, and its data card: `target` is the post-edited reference, and segments with a bad
source (`is_bad_source`) do not count, which leaves 960 of 998.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mnmt_jax.data.corpus import FileCorpus, Line, NoFilesError
from mnmt_jax.data.text_reader import Cleaning, Flaw, read_lines, surrogate_flaw
from mnmt_jax.errors import UserError
from mnmt_jax.files.json_objects import parse_json
from mnmt_jax.files.storage_errors import one_line
from mnmt_jax.vocabulary.language_codes import Direction

_LOCALES = (
    "ar_EG bg_BG bn_IN ca_ES cs_CZ da_DK de_DE el_GR es_MX et_EE fa_IR fi_FI fil_PH fr_FR gu_IN "
    "he_IL hi_IN hr_HR hu_HU id_ID is_IS it_IT ja_JP kn_IN ko_KR lt_LT lv_LV ml_IN mr_IN nl_NL "
    "no_NO pa_IN pl_PL pt_BR ro_RO ru_RU sk_SK sl_SI sr_RS sv_SE sw_TZ ta_IN te_IN th_TH tr_TR "
    "uk_UA ur_PK vi_VN zh_CN zu_ZA"
).split()
_VARIETIES = {"zh_Hant": "zh_TW"} | {code: code for code in ("ar_SA", "fr_CA", "pt_PT", "sw_KE")}
LOCALES = {
    "tl" if locale == "fil_PH" else locale.partition("_")[0]: locale for locale in _LOCALES
} | _VARIETIES
"""Locale in file names by code; of two varieties of a language one has the code without region."""
LANGUAGES = ("en", *LOCALES)
_BAD_SOURCE = Flaw("bad_source", "a source marked as bad", expected=True)
_EXTRA_BYTES = 1 << 16  # of a line, for its other fields


class Wmt24pp(FileCorpus):
    """Test text from and to English.

    Args:
        folder: folder of the files.
        name: name of the corpus.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(name, LANGUAGES, {"test": "test"}, Cleaning())
        self._paths = {
            code: path
            for code, locale in LOCALES.items()
            if (path := folder / f"en-{locale}.jsonl").is_file()
        }
        if not self._paths:
            raise NoFilesError(f"corpus {name!r}: no files {folder}/en-de_DE.jsonl and so on", self)

    def directions(self, split: str) -> tuple[Direction, ...]:
        """Return the directions that have a file, from English first."""
        from_english = tuple(("en", code) for code in self._paths) if split == "test" else ()
        return (*from_english, *((code, english) for english, code in from_english))

    def files(self, split: str, direction: Direction) -> tuple[str, ...]:
        """Return the file of a direction."""
        return (str(self._paths[self._other(direction)]),)

    def _other(self, direction: Direction) -> str:
        return direction[0] if direction[1] == "en" else direction[1]

    def _read(self, split: str, direction: Direction) -> Iterator[Line]:
        path = str(self._paths[self._other(direction)])
        fields = ("source", "target") if direction[0] == "en" else ("target", "source")
        lines = read_lines(path, 4 * self._max_bytes + _EXTRA_BYTES)
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if isinstance(line, Flaw):
                yield Line((line, line), (place, place))
                continue
            row = _parse(line, place)
            if row.get("is_bad_source"):
                yield Line((_BAD_SOURCE, _BAD_SOURCE), (place, place))
                continue
            first, second = (_one_line(row[field]) for field in fields)
            yield Line((first, second), (place, place))


def _one_line(text: str) -> str | Flaw:
    return surrogate_flaw(text) or " ".join(text.split())


def _parse(line: str, place: str) -> dict[str, str]:
    """Return the object of a line.

    Raises:
        UserError: if it is not one, or has no texts.
    """
    try:
        row = parse_json(line, finite=False, allow_surrogates=True)
    except ValueError as error:
        problem = f"{place}: not JSON ({one_line(error)})"
        raise UserError(f"{problem}; download the file again") from error
    if not isinstance(row, dict) or not all(
        isinstance(row.get(field), str) for field in ("source", "target")
    ):
        raise UserError(
            f"{place}: no object with the texts 'source' and 'target'; download the file again"
        )
    return row
