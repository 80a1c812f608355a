"""Language tags of published models, and their mapping to this project's codes."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from mnmt_jax.data.multiway_tests import FLORES_200
from mnmt_jax.vocabulary.language_codes import canonical_code, is_code
from mnmt_jax.vocabulary.languages import LANGUAGES

M2M100_LANGUAGES: tuple[str, ...] = tuple(
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu".split()
)
"""The 100 languages of M2M-100 in the order of its tags."""

NLLB_TAGS: tuple[str, ...] = tuple(
    "ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab "
    "arb_Arab ars_Arab ary_Arab arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn "
    "bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng bho_Deva bjn_Arab bjn_Latn bod_Tibt "
    "bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn cym_Latn "
    "dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn "
    "ewe_Latn fao_Latn pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn "
    "gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn "
    "hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn jpn_Jpan kab_Latn "
    "kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn "
    "kea_Latn khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo "
    "lvs_Latn lij_Latn lim_Latn lin_Latn lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn "
    "luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn mkd_Cyrl plt_Latn mlt_Latn "
    "mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva "
    "nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn "
    "por_Latn prs_Arab pbt_Arab quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng "
    "scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn sna_Latn snd_Arab som_Latn sot_Latn "
    "spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn tam_Taml "
    "tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn "
    "tso_Latn tuk_Latn tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab "
    "uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans "
    "zho_Hant zul_Latn".split()
)
"""The 202 language tags of NLLB-200 in the order of its ids."""

_CODE_OF_FLORES: Mapping[str, str] = MappingProxyType(
    {facts.flores: code for code, facts in LANGUAGES.items() if facts.flores}
    | {tag: code for code, tag in FLORES_200.items()}
    | {"nob_Latn": "nb"}  # also that of "no"
)
_UNDERSCORED = re.compile(r"__([A-Za-z][A-Za-z0-9_@-]*)__")
_PLAIN_CODE = re.compile(r"[A-Za-z_]+")
_SEPARATORS = re.compile(r"[-@]")  # of published codes, which become underscores here
_FLORES = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")


def code_of_tag(token: str) -> str | None:
    """Return our code of a tag such as `__de__` or `deu_Latn`; None if it is not a tag.

    If the project has no code for the language, return the tag's own code, e.g. `ace_Arab`. A token
    with digits or hyphens is a tag if it holds a language code: `__pt-br__` is `pt_BR`.
    """
    if match := _UNDERSCORED.fullmatch(token):
        code = match[1]
        if not _PLAIN_CODE.fullmatch(code) and not is_code(code):
            return None
        code = canonical_code(code) if _SEPARATORS.search(code) else code
        return _CODE_OF_FLORES.get(code, code)
    if _FLORES.fullmatch(token):
        return _CODE_OF_FLORES.get(token, token)
    return None


def codes_of_tags(tokens: Iterable[str]) -> dict[str, str]:
    """Return our code of each token that is a tag.

    Tags such as `__zh__` and `__zh-cn__`, which denote one language here, keep different codes:
    `zh` and `zh_cn`.
    """
    codes = {token: code for token in tokens if (code := code_of_tag(token)) is not None}
    counts = collections.Counter(codes.values())
    return {
        token: _SEPARATORS.sub("_", token.strip("_"))
        if counts[code] > 1 and _SEPARATORS.search(token)
        else code
        for token, code in codes.items()
    }


NLLB_LANGUAGES: tuple[str, ...] = tuple(_CODE_OF_FLORES.get(tag, tag) for tag in NLLB_TAGS)
"""This project's codes of NLLB-200's tags, in the same order."""


def tag_tokens(languages: Sequence[str]) -> list[str]:
    """Return the tags that other toolkits expect: NLLB's tags for its list, else `__xx__`."""
    nllb_tags = NLLB_TAGS if tuple(languages[: len(NLLB_TAGS)]) == NLLB_LANGUAGES else ()
    return [*nllb_tags, *(f"__{code}__" for code in languages[len(nllb_tags) :])]
