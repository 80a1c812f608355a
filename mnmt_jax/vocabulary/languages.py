"""Built-in table of languages, their groups, and the directions of corpora.

Each language is defined once, as a row of `_TABLE`; everything else refers to it by its code.
`get_language` also describes languages outside the table.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mnmt_jax.errors import UserError
from mnmt_jax.files.toml_files import read_toml
from mnmt_jax.vocabulary.bridge_strategy import (
    PACKAGED,
    bridge_directions,
    read_bridge_strategy,
)
from mnmt_jax.vocabulary.language_codes import (
    Direction,
    canonical_codes,
    display_name,
    find_code,
    parse_code,
    script_name,
)

# Columns: code, Flores+ code, English name, group, script, lid.176 label ("-": none).
# "nb" and "no" share Flores' Bokmål; "sh" is written in Latin in OPUS-100.
_TABLE = """
af  afr_Latn Afrikaans          Germanic          Latin      af
am  amh_Ethi Amharic            Afro-Asiatic      Ethiopic   am
an  arg_Latn Aragonese          Romance           Latin      an
ar  arb_Arab Arabic             Afro-Asiatic      Arabic     ar
as  asm_Beng Assamese           Indo-Aryan        Bengali    as
ast ast_Latn Asturian           Romance           Latin      ast
az  azj_Latn Azerbaijani        Turkic            Latin      az
be  bel_Cyrl Belarusian         Slavic            Cyrillic   be
bg  bul_Cyrl Bulgarian          Slavic            Cyrillic   bg
bn  ben_Beng Bengali            Indo-Aryan        Bengali    bn
br  -        Breton             Celtic            Latin      br
bs  bos_Latn Bosnian            Slavic            Latin      bs
ca  cat_Latn Catalan            Romance           Latin      ca
cs  ces_Latn Czech              Slavic            Latin      cs
cy  cym_Latn Welsh              Celtic            Latin      cy
da  dan_Latn Danish             Germanic          Latin      da
de  deu_Latn German             Germanic          Latin      de
dz  dzo_Tibt Dzongkha           Sino-Tibetan      Tibetan    -
el  ell_Grek Greek              Hellenic          Greek      el
en  eng_Latn English            English           Latin      en
eo  epo_Latn Esperanto          Constructed       Latin      eo
es  spa_Latn Spanish            Romance           Latin      es
et  est_Latn Estonian           Uralic            Latin      et
eu  eus_Latn Basque             Isolate           Latin      eu
fa  pes_Arab Persian            Iranian           Arabic     fa
fi  fin_Latn Finnish            Uralic            Latin      fi
fr  fra_Latn French             Romance           Latin      fr
fy  -        West_Frisian       Germanic          Latin      fy
ga  gle_Latn Irish              Celtic            Latin      ga
gd  gla_Latn Scottish_Gaelic    Celtic            Latin      gd
gl  glg_Latn Galician           Romance           Latin      gl
gu  guj_Gujr Gujarati           Indo-Aryan        Gujarati   gu
ha  hau_Latn Hausa              Afro-Asiatic      Latin      -
he  heb_Hebr Hebrew             Afro-Asiatic      Hebrew     he
hi  hin_Deva Hindi              Indo-Aryan        Devanagari hi
hr  hrv_Latn Croatian           Slavic            Latin      hr
hu  hun_Latn Hungarian          Uralic            Latin      hu
hy  hye_Armn Armenian           Armenian          Armenian   hy
id  ind_Latn Indonesian         Malayo-Polynesian Latin      id
ig  ibo_Latn Igbo               Niger-Congo       Latin      -
is  isl_Latn Icelandic          Germanic          Latin      is
it  ita_Latn Italian            Romance           Latin      it
iu  -        Inuktitut          Eskimo-Aleut      Syllabics  -
ja  jpn_Jpan Japanese           Asian             Japanese   ja
jv  jav_Latn Javanese           Malayo-Polynesian Latin      jv
ka  kat_Geor Georgian           Kartvelian        Georgian   ka
kab kab_Latn Kabyle             Afro-Asiatic      Latin      -
kk  kaz_Cyrl Kazakh             Turkic            Cyrillic   kk
km  khm_Khmr Khmer              Austroasiatic     Khmer      km
kn  kan_Knda Kannada            Dravidian         Kannada    kn
ko  kor_Hang Korean             Asian             Hangul     ko
ku  kmr_Latn Kurdish            Iranian           Latin      ku
ky  kir_Cyrl Kyrgyz             Turkic            Cyrillic   ky
lb  ltz_Latn Luxembourgish      Germanic          Latin      lb
li  lim_Latn Limburgish         Germanic          Latin      li
lt  lit_Latn Lithuanian         Baltic            Latin      lt
lv  lvs_Latn Latvian            Baltic            Latin      lv
mg  plt_Latn Malagasy           Malayo-Polynesian Latin      mg
mk  mkd_Cyrl Macedonian         Slavic            Cyrillic   mk
ml  mal_Mlym Malayalam          Dravidian         Malayalam  ml
mn  khk_Cyrl Mongolian          Mongolic          Cyrillic   mn
mr  mar_Deva Marathi            Indo-Aryan        Devanagari mr
ms  zsm_Latn Malay              Malayo-Polynesian Latin      ms
mt  mlt_Latn Maltese            Afro-Asiatic      Latin      mt
my  mya_Mymr Burmese            Sino-Tibetan      Burmese    my
nb  nob_Latn Norwegian_Bokmål   Germanic          Latin      no
ne  npi_Deva Nepali             Indo-Aryan        Devanagari ne
nl  nld_Latn Dutch              Germanic          Latin      nl
nn  nno_Latn Norwegian_Nynorsk  Germanic          Latin      nn
no  nob_Latn Norwegian          Germanic          Latin      no
oc  oci_Latn Occitan            Romance           Latin      oc
or  ory_Orya Odia               Indo-Aryan        Odia       or
pa  pan_Guru Punjabi            Indo-Aryan        Gurmukhi   pa
pl  pol_Latn Polish             Slavic            Latin      pl
ps  pbt_Arab Pashto             Iranian           Arabic     ps
pt  por_Latn Portuguese         Romance           Latin      pt
ro  ron_Latn Romanian           Romance           Latin      ro
ru  rus_Cyrl Russian            Slavic            Cyrillic   ru
rw  kin_Latn Kinyarwanda        Niger-Congo       Latin      -
sd  snd_Arab Sindhi             Indo-Aryan        Arabic     sd
se  -        Northern_Sami      Uralic            Latin      -
sh  -        Serbo-Croatian     Slavic            Latin      sh
si  sin_Sinh Sinhala            Indo-Aryan        Sinhala    si
sk  slk_Latn Slovak             Slavic            Latin      sk
sl  slv_Latn Slovenian          Slavic            Latin      sl
so  som_Latn Somali             Afro-Asiatic      Latin      so
sq  als_Latn Albanian           Albanian          Latin      sq
sr  srp_Cyrl Serbian            Slavic            Cyrillic   sr
sv  swe_Latn Swedish            Germanic          Latin      sv
sw  swh_Latn Swahili            Niger-Congo       Latin      sw
ta  tam_Taml Tamil              Dravidian         Tamil      ta
te  tel_Telu Telugu             Dravidian         Telugu     te
tg  tgk_Cyrl Tajik              Iranian           Cyrillic   tg
th  tha_Thai Thai               Kra-Dai           Thai       th
ti  tir_Ethi Tigrinya           Afro-Asiatic      Ethiopic   -
tk  tuk_Latn Turkmen            Turkic            Latin      tk
tl  fil_Latn Filipino           Malayo-Polynesian Latin      tl
tr  tur_Latn Turkish            Turkic            Latin      tr
tt  tat_Cyrl Tatar              Turkic            Cyrillic   tt
ug  uig_Arab Uyghur             Turkic            Arabic     ug
uk  ukr_Cyrl Ukrainian          Slavic            Cyrillic   uk
ur  urd_Arab Urdu               Indo-Aryan        Arabic     ur
uz  uzn_Latn Uzbek              Turkic            Latin      uz
vi  vie_Latn Vietnamese         Asian             Latin      vi
wa  -        Walloon            Romance           Latin      wa
xh  xho_Latn Xhosa              Niger-Congo       Latin      -
yi  ydd_Hebr Yiddish            Germanic          Hebrew     yi
yo  yor_Latn Yoruba             Niger-Congo       Latin      yo
zh  cmn_Hans Chinese            Asian             Han        zh
zu  zul_Latn Zulu               Niger-Congo       Latin      -
"""

OTHER_FAMILY = "Other"
"""Family of languages outside the built-in table."""

_HAN = ("Hans", "Hant", "Hani")
_MIXED_SCRIPTS = {"zh": _HAN}  # that lid.176 and sacreBLEU do not distinguish
_TOKENIZER_OF_SCRIPT = dict.fromkeys(_HAN, "zh")
_SCRIPTS = {"Hans": "Han", "Hant": "Han", "Jpan": "Japanese", "Kore": "Hangul"}
_SACREBLEU_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}

SACREBLEU_EXTRAS: Mapping[str, str] = MappingProxyType(
    {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
)
"""sacreBLEU tokenizers that need an extra package, and the requirement to install."""


@dataclass(frozen=True)
class Language:
    """A language.

    Attributes:
        code: ISO 639-1 code, or ISO 639-3 if there is none (ast, kab).
        flores: code in Flores+ (Flores-200 if Flores+ lacks it); None if in neither.
        name: English name.
        family: group for averages, with MITRE's groups ("Asian" is one of them; English is its own
            group); languages of other corpora have their (sub-)family.
        script: English name of the script.
        sacrebleu_tokenizer: tokenizer of sacreBLEU's BLEU when this is the target language.
        detector: label of fastText's lid.176; None if it has none, or none that is reliable.
    """

    code: str
    flores: str | None
    name: str
    family: str
    script: str
    sacrebleu_tokenizer: str
    detector: str | None


def _read_table(table: str) -> dict[str, Language]:
    """Parse `_TABLE` into languages by code."""
    languages = {}
    for line in table.split("\n"):
        if not line:
            continue
        code, flores, name, family, script, detector = line.split()
        languages[code] = Language(
            code=code,
            flores=None if flores == "-" else flores,
            name=name.replace("_", " "),
            family=family,
            script=script,
            sacrebleu_tokenizer=_SACREBLEU_TOKENIZERS.get(code, "13a"),
            detector=None if detector == "-" else detector,
        )
    return languages


LANGUAGES: Mapping[str, Language] = MappingProxyType(_read_table(_TABLE))
"""The languages of the built-in table by code, in alphabetical order of the codes."""

# The codes in the file are canonical, so they are not parsed at import.
_MITRE = read_toml(PACKAGED["mitre"])

MITRE_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: tuple(group["languages"]) for name, group in _MITRE["groups"].items()}
)
"""MITRE's groups without English, bridge languages first."""

MITRE_LANGUAGES: tuple[str, ...] = (*_MITRE["hub"], *itertools.chain(*MITRE_GROUPS.values()))
"""The 24 languages of MITRE in the order of its language tags."""

_FINE_TUNING_DIRECTIONS = 100

EC40_LANGUAGES: tuple[str, ...] = tuple(
    "en bg so ca da be bs mt es uk am hi ro no ti de cs lb pt nl mr is ne ur oc ast ha sv kab gu "
    "ar fr ru it pl sr sd he af kn bn".split()
)
"""English and the 40 languages of EC-40 in the order of their language tags."""

IWSLT17_LANGUAGES: tuple[str, ...] = ("en", "it", "ro", "nl")
"""The languages of IWSLT 2017 in the language-specific layers paper."""

EC40_TIERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "high": ("de", "nl", "fr", "es", "ru", "cs", "hi", "bn", "ar", "he"),
        "medium": ("sv", "da", "it", "pt", "pl", "bg", "kn", "mr", "mt", "ha"),
        "low": ("af", "lb", "ro", "oc", "uk", "sr", "sd", "gu", "ti", "am"),
        "extra_low": ("no", "is", "ast", "ca", "be", "bs", "ne", "ur", "kab", "so"),
    }
)
"""EC-40 by training sentences per language: 5 M, 1 M, 100 k, 50 k (ha 334 k, kab 18 k)."""

EC40_TABLE_TIERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "High": ("en", *EC40_TIERS["high"]),
        "Med": EC40_TIERS["medium"],
        "Low": EC40_TIERS["low"],
        "XLow": EC40_TIERS["extra_low"],
    }
)
"""Tiers of EC-40 as in its tables: English is in the high tier."""

EC40_GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Germanic": ("de", "nl", "sv", "da", "af", "lb", "no", "is"),
        "Romance": ("fr", "es", "it", "pt", "ro", "oc", "ast", "ca"),
        "Slavic": ("ru", "cs", "pl", "bg", "uk", "sr", "be", "bs"),
        "Indo-Aryan": ("hi", "bn", "kn", "mr", "sd", "gu", "ne", "ur"),
        "Afro-Asiatic": ("ar", "he", "mt", "ha", "ti", "am", "kab", "so"),
    }
)
"""EC-40's families as its authors group them (Kannada counts as Indo-Aryan there)."""

TED19_LANGUAGES: tuple[str, ...] = tuple(
    "en ar he ru ko it ja zh es nl vi tr fr pl ro fa hr cs de".split()
)
"""The 19 languages of TED-19 in the order of their language tags."""

TED20_LANGUAGES: tuple[str, ...] = tuple(
    "en ar bg de es fa fr he hu it ja ko nl pl pt ro ru tr vi zh".split()
)
"""The 20 languages of the talks that Qu and Watanabe (2022) use; Portuguese is Brazil's."""

TED30_LANGUAGES: tuple[str, ...] = tuple(
    "bg bn bs cs de el en es et fa fi fr hi hr hu it ja kk lt mk mr nl pl pt ro ru sr ta tr uk "
    "zh".split()
)
"""English and the 30 languages of the talks that Graformer translates; Portuguese is Portugal's."""

WMT14_LANGUAGES: tuple[str, ...] = ("en", "de", "fr")

NEWSCRAWL_LANGUAGES: tuple[str, ...] = tuple(
    "am bg bn bs cs de el en es et fa fi fr gu hi hr hu it iu ja kk km kn ky lt lv mk ml mr nl or "
    "pa pl ps pt ro ru so sr sw ta te tr uk zh".split()
)
"""The 45 languages of Graformer's pre-training in the order of its tags, without processed
Romanian, which has a separate tag there."""

OPUS100_LANGUAGES: tuple[str, ...] = tuple(
    "af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he "
    "hi hr hu id ig is it ja ka kk km kn ko ku ky li lt lv mg mk ml mr ms mt my nb ne nl nn no oc "
    "or pa pl ps pt ro ru rw se sh si sk sl sq sr sv ta te tg th tk tr tt ug uk ur uz vi wa xh yi "
    "zh zu".split()
)
"""The 95 languages of OPUS-100 that have test data, in the order of their language tags."""

OPUS100_ALL_LANGUAGES: tuple[str, ...] = tuple(
    sorted((*OPUS100_LANGUAGES, "an", "dz", "hy", "mn", "yo"))
)
"""All 100 languages of OPUS-100; five have only training data.

Table 11 of the language-specific layers paper lists 94 of them: it leaves out af, am, ar, ha, he
and mt, though ar is one of its zero-shot languages. Its order differs from that of the tags here.
"""


def get_language(code: str) -> Language:
    """Return the description of a language.

    Args:
        code: code of any form (`mnmt_jax.vocabulary.language_codes`), e.g. "de" or "deu_Latn". A
            language outside `LANGUAGES` is described by CLDR; a variety of one of `LANGUAGES`
            shares its family.

    Raises:
        UserError: if it is not a language code.
    """
    return LANGUAGES[code] if code in LANGUAGES else _describe_external(code)


@functools.lru_cache(maxsize=1024)
def _describe_external(text: str) -> Language:
    """Return the language of a code that is not a key of `LANGUAGES`."""
    tag = parse_code(text)
    if tag.code in LANGUAGES:
        return LANGUAGES[tag.code]
    base = LANGUAGES.get(tag.language)
    script = tag.written_script
    is_default = script == parse_code(tag.language).written_script
    same_script = is_default or tag.script in _MIXED_SCRIPTS.get(tag.language, ())
    return Language(
        code=tag.code,
        flores=None,
        name=display_name(tag),
        family=base.family if base else OTHER_FAMILY,
        script=base.script
        if base and is_default
        else _SCRIPTS.get(script, "") or script_name(script),
        sacrebleu_tokenizer=base.sacrebleu_tokenizer
        if base and same_script
        else _TOKENIZER_OF_SCRIPT.get(script, "13a"),
        detector=base.detector if base and same_script else None,
    )


def find_english(codes: Iterable[str]) -> str | None:
    """Return the code of English among canonical codes; None if there is none or several."""
    codes = tuple(codes)
    try:
        return find_code("en", codes)
    except UserError:
        return None


def english_centric_directions(languages: Iterable[str]) -> tuple[Direction, ...]:
    """List the directions between English and every other language.

    Args:
        languages: codes, including English.

    Returns:
        All en→x in the order of `languages`, then all x→en.

    Raises:
        UserError: if English is missing or a code is unknown or repeated.
    """
    codes = canonical_codes(languages)
    english = find_english(codes)
    if english is None:
        raise UserError(f"languages {' '.join(codes)}: an English-centric list needs 'en'")
    others = [code for code in codes if code != english]
    return (*((english, code) for code in others), *((code, english) for code in others))


def many_to_many_directions(languages: Iterable[str]) -> tuple[Direction, ...]:
    """List every ordered pair of different languages, in the order of `languages`."""
    return tuple(itertools.permutations(canonical_codes(languages), 2))


def mitre_directions() -> tuple[Direction, ...]:
    """List the 194 training directions of MITRE, in the order of its published list.

    They are the directions of `mitre.toml`: English with all (23 pairs), each bridge with the other
    members of its group (25), all bridges with each other (36), and 13 further pairs; then the same
    pairs reversed.

    Source: the rule is MITRE §4.1; the 13 pairs follow the authors' published list, which differs
    from the paper's table (there Malay is a full bridge and Filipino has no extra pairs).
    """
    return bridge_directions(read_bridge_strategy(PACKAGED["mitre"]))


def fine_tuning_directions(count: int) -> tuple[Direction, ...]:
    """List MITRE's fine-tuning directions: the first `count` of the 100 drawn with seed 0.

    The published sets have 5, 25 and 100.

    Raises:
        UserError: if `count` is not from 1 to 100.

    Source: registers paper, Appendix E. Drawing 25 directly gives another list from the 18th on.
    """
    if not 1 <= count <= _FINE_TUNING_DIRECTIONS:
        raise UserError(
            f"fine-tuning directions {count}: there are 1 to {_FINE_TUNING_DIRECTIONS}; the "
            "published sets have 5, 25 and 100"
        )
    all_directions = many_to_many_directions(MITRE_LANGUAGES)
    return tuple(random.Random(0).sample(all_directions, _FINE_TUNING_DIRECTIONS)[:count])
