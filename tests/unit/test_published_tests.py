"""Published test sets, read from a few lines in their file formats."""

import itertools
import json

import pytest

from mnmt_jax.data.parallel_corpora import get_corpus
from mnmt_jax.data.published_corpora import published_corpus
from mnmt_jax.errors import UserError
from mnmt_jax.evaluation.benchmark import Benchmark


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """The folder that MNMT_JAX_DATA names."""
    monkeypatch.setenv("MNMT_JAX_DATA", str(tmp_path))
    return tmp_path


def lines(*texts):
    return "".join(f"{text}\n" for text in texts)


# Names of NTREX-128 for languages of this project, as its repository has them.
NTREX = """
en src.eng, af ref.afr, am ref.amh, ar ref.arb, az ref.aze-Latn, be ref.bel, bg ref.bul,
bn ref.ben, bs ref.bos, ca ref.cat, cs ref.ces, da ref.dan, de ref.deu, es ref.spa, fa ref.fas,
fr ref.fra, ha ref.hau, he ref.heb, id ref.ind, is ref.isl, lv ref.lav, ms ref.msa, ne ref.nep,
no ref.nob, ro ref.ron, sd ref.snd-Arab, sr ref.srp-Cyrl, tl ref.fil, uz ref.uzb, hr ref.hrv,
zh ref.zho-CN
"""


def test_ntrex(data):
    names = dict(item.split() for item in NTREX.replace("\n", " ").split(","))
    for code, word in names.items():
        path = data / "ntrex" / "NTREX-128" / f"newstest2019-{word}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines(f"first in {code}", f"second in {code}"), encoding="utf-8")
    corpus = get_corpus("ntrex")
    assert corpus.splits() == ("test",)
    actual = {code for direction in corpus.directions("test") for code in direction}
    assert actual == set(names) | {"nb"}
    assert list(corpus.pairs("test", ("zh", "en")))[1] == ("second in zh", "second in en")


def test_wmt24pp(data):
    def rows(*texts):
        fields = ({"source": s, "target": t, "is_bad_source": bad} for s, t, bad in texts)
        return lines(*map(json.dumps, fields))

    folder = data / "wmt24pp"
    folder.mkdir(parents=True)
    german = rows(("Yes.", "Ja.", False), ("%%", "%%", True), ("One.\nTwo.", "Eins.  Zwei.", False))
    (folder / "en-de_DE.jsonl").write_text(german)
    (folder / "en-zh_TW.jsonl").write_text(rows(("Yes.", "是。", False)))
    corpus = get_corpus("wmt24pp")
    assert corpus.splits() == ("test",) and len(corpus.languages) == 56
    pairs = [("en", "de"), ("en", "zh_Hant"), ("de", "en"), ("zh_Hant", "en")]
    assert corpus.directions("test") == tuple(pairs) and corpus.directions("train") == ()
    expected = [("Yes.", "Ja."), ("One. Two.", "Eins. Zwei.")]
    assert list(corpus.pairs("test", ("en", "de"))) == expected
    assert list(corpus.pairs("test", ("de", "en"))) == [pair[::-1] for pair in expected]
    assert corpus.reports["test", ("en", "de")].dropped == {"bad_source": 1}
    benchmark = Benchmark("wmt24pp", corpus, languages=("en", "de"), limit=1)
    assert benchmark.texts(("en", "de")).references == ("Ja.",)
    half = rows(("Yes \ud83d.", "Ja.", False)).strip()
    for text, message in (
        ("[1]", "no object with the texts"),
        ("x", "not JSON"),
        (half, r".*half a character \(a surrogate, \\ud83d\) at 5"),
    ):
        (folder / "en-de_DE.jsonl").write_text(text + "\n")
        with pytest.raises(UserError, match=f"en-de_DE.jsonl:1: {message}"):
            list(published_corpus("wmt24pp").pairs("test", ("en", "de")))


def test_bouquet(data):
    """Korean and Portuguese have other names than in Flores+, and its Arabic is not `ar`."""
    names = {"en": "eng_Latn", "ko": "kor_Kore", "pt": "por_Latn_braz1246", "zh": "cmn_Hans"}
    for split in ("dev", "test"):
        folder = data / "bouquet" / split
        folder.mkdir(parents=True)
        for name in (*names.values(), "arz_Arab", "kor_Hang"):
            rows = [
                {"uniq_id": f"P1-S{n}", "src_lang": name, "src_text": f"{split} {name} {n}"}
                | {"tgt_lang": "eng_Latn", "tgt_text": "English"}
                for n in (1, 2)
            ]
            (folder / f"{name}.jsonl").write_text(lines(*map(json.dumps, rows)), encoding="utf-8")
    corpus = get_corpus("bouquet")
    assert corpus.splits() == ("validation", "test")
    assert set(corpus.directions("test")) == set(itertools.permutations(names, 2))
    assert list(corpus.pairs("test", ("pt", "ko"))) == [
        (f"test por_Latn_braz1246 {n}", f"test kor_Kore {n}") for n in (1, 2)
    ]
    assert next(iter(corpus.pairs("validation", ("en", "zh")))) == (
        "dev eng_Latn 1",
        "dev cmn_Hans 1",
    )
    (data / "bouquet" / "test" / "eng_Latn.jsonl").write_text('{"text": "One"}\n')
    with pytest.raises(UserError, match="eng_Latn.jsonl:1: field 'src_text' is missing"):
        list(published_corpus("bouquet").pairs("test", ("en", "zh")))
