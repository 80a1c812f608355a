"""The corpus of LibreOffice's help pages, from small generated packages."""

import io
import itertools
import json
import os
import socket
import subprocess
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from mnmt_jax.data import debian_packages
from mnmt_jax.data.debian_packages import sha256_of
from mnmt_jax.data.document_corpus import documents
from mnmt_jax.data.libreoffice_corpus import HELP_FOLDERS, HELP_LANGUAGES, HELP_PATH, help_package
from mnmt_jax.data.libreoffice_pages import MAX_PAGE_BYTES, paragraphs, sentences, split_of
from mnmt_jax.data.mixtures import MIXTURES, zero_shot_directions
from mnmt_jax.data.parallel_corpora import get_corpus
from mnmt_jax.data.published_corpora import PUBLISHED
from mnmt_jax.errors import UserError
from tests.limited import run_limited
from tests.run_commands import command

# Numbers of pages by the split that their names lead to.
TRAIN, VALIDATION, TEST = (0, 1, 2, 3, 4, 5, 6, 8), (7, 23), (43, 52)
PAGE = """<!DOCTYPE html>
<html lang="{language}" dir="ltr"><head><meta charset="utf-8"><title>A title of no use here</title>
<script type="text/javascript">var text = "<p id='par_id1'>No text at all.</p>";</script></head>
<body><header id="TopLeftHeader"><p dir="auto">The header of all pages</p></header>
<div id="DisplayArea">
<h1 id="hd_id1" dir="auto"><a name="bookmark"></a>{title}</h1>
{paragraphs}
</div><footer><p id="bm_module" dir="auto">The footer of all pages</p></footer></body></html>
"""


def name_of(number):
    return f"swriter/guide/page{number}.html"


def write_page(root, code, number, texts):
    """Write a page: a heading, and paragraphs by their ids."""
    lines = [f'<p id="{key}" class="paragraph" dir="auto">{text}</p>' for key, text in texts]
    path = root / HELP_PATH / HELP_FOLDERS[code] / "text" / name_of(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    page = PAGE.format(language=code, title="A heading", paragraphs="\n".join(lines))
    path.write_text(page, encoding="utf-8")


def sentence(code, number):
    return f"In {code} the button of page {number} <span>opens</span> a window."


def plain(code, number):
    return f"In {code} the button of page {number} opens a window."


@pytest.fixture
def tree(tmp_path):
    """Write unpacked packages: one page per number, one sentence per page, and special cases."""
    root = tmp_path / "tree"
    for number, code in itertools.product((*TRAIN, *VALIDATION, *TEST), HELP_LANGUAGES):
        texts = [("par_id1", sentence(code, number))]
        if number == 1:  # stands in a test page too, but for case and punctuation
            texts.append(("par_id2", sentence(code, 43).upper()))
        if number == 2:  # two sentences, in Czech one: stays whole
            parts = ("Press it now or never", "Then {} waits for you")
            joint = "; " if code == "cs" else ". "
            texts.append(("par_id2", joint.join(parts).format(code) + "."))
        if number == 3:  # left in English by the French
            texts.append(("par_id2", f"{'en' if code == 'fr' else code}: nobody has done this."))
        if number == 5:  # too short, too little text, and no translation by its length
            texts.append(("par_id2", f"Only {code} words"))
            texts.append(("par_id3", f"{code} = 1 + 2 - (3 * 4) / 5"))
            texts.append(
                ("par_id4", f"A few words in {code}" + (code != "en") * " and many, many more" * 3)
            )
        if number == 8 and code == "es":  # a page without the paragraph
            texts = []
        write_page(root, code, number, texts)
    return root


@pytest.fixture
def fetched(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("MNMT_JAX_DATA", str(tmp_path / "data"))
    command("fetch_corpus", "libreoffice_help", "--from", tree)
    return tmp_path / "data" / "libreoffice_help"


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_paragraph_text_is_the_rendered_text(tmp_path):
    texts = [
        (
            "par_id1",
            'Choose <span class="switchinline"><span hidden="true" id="MACx"><b>Setup</b></span>'
            '<span hidden="true" id="defaultx"><b>Tools &amp; more</b></span></span> -&nbsp;'
            "Cafe\u0301.\nSecond line<br>third",
        ),
        ("par_id2", 'Write <span class="code">x = 1</span><style>p {}</style> here.'),
        ("par_id1", "The same once more"),
        ("par_id3", "Outer <i id='par_id4'>inner</i> again"),
        ("bm_id5", "No paragraph"),
        ("par_id6", '<img src="x" alt="y"><pre class="bascode">Print 1</pre>'),
    ]
    write_page(tmp_path, "en", 0, texts)
    assert paragraphs(tmp_path / HELP_PATH / "en-US" / "text" / name_of(0)) == {
        "hd_id1": "A heading",
        "par_id1": "Choose Tools & more - Café. Second line third",
        "par_id2": "Write here.",
        "par_id1#2": "The same once more",
        "par_id3": "Outer again",
        "par_id4": "inner",
        "par_id6": "",
    }
    assert paragraphs(tmp_path / "absent.html") == {}


@pytest.mark.parametrize(
    "parts",
    [
        ("Click here.", "Then wait!", "Why?", "So that it ends."),
        ("See e.g. Figure 3 for this.", "«Next» follows."),
        ("Das geht, z.B. Zeilen.", "Fertig."),
        ("He said “yes.”", "She did not."),
        ("Version 7.4 is there.", "¿Qué es?"),
        ("it ends. but not before this",),
        ("No. 5 lives",),
        (),
    ],
)
def test_sentences(parts):
    assert sentences(" ".join(parts)) == list(parts)


def test_pages_are_split_by_the_hash_of_their_names():
    """Pinned: another split would mix training text with the test text of published results."""
    dealt = {
        "sbasic/shared/03020403.html": "test",
        "shared/00/00040502.html": "validation",
        "swriter/guide/delete_from_dict.html": "train",
    }
    assert {name: split_of(Path(name)) for name in dealt} == dealt
    splits = [split_of(Path(f"scalc/01/{number}.html")) for number in range(4000)]
    shares = {split: splits.count(split) / 4000 for split in ("train", "validation", "test")}
    assert shares == pytest.approx({"train": 0.9, "validation": 0.05, "test": 0.05}, abs=0.01)


def test_lines_in_all_languages_are_parallel(fetched):
    for split, numbers in (("validation", VALIDATION), ("test", TEST)):
        for code in HELP_LANGUAGES:
            assert set(lines(fetched / f"{split}.{code}")) == {plain(code, n) for n in numbers}
    # Not: what a test page has, what Spanish lacks, what French left in English.
    assert set(lines(fetched / "train.cs")) == {
        *(plain("cs", number) for number in TRAIN if number != 8),
        "Press it now or never; Then cs waits for you.",
    }
    rows = zip(*(lines(fetched / f"train.{code}") for code in ("keys", "en", "pt")), strict=True)
    actual = {key: (english, other) for key, english, other in rows}
    assert actual[f"{name_of(2)}\tpar_id2\t0"] == (
        "Press it now or never. Then en waits for you.",
        "Press it now or never. Then pt waits for you.",
    )
    assert actual[f"{name_of(0)}\tpar_id1\t0"] == (plain("en", 0), plain("pt", 0))


def test_pairs_with_english_contain_all_common_lines(fetched):
    special = "{}: nobody has done this."
    for code in HELP_LANGUAGES[1:]:
        english, other = (lines(fetched / f"train.en-{code}.{side}") for side in ("en", code))
        expected = {(plain("en", n), plain(code, n)) for n in TRAIN if (n, code) != (8, "es")}
        if code != "fr":
            expected.add((special.format("en"), special.format(code)))
        whole = [row for row in zip(english, other, strict=True) if "Press" not in row[0]]
        assert len(whole) == len(expected) and set(whole) == expected


def test_disjoint_pairs_share_no_english_sentence(fetched):
    sentences_so_far = []
    for code in HELP_LANGUAGES[1:]:
        rows, every = (
            list(
                zip(
                    lines(fetched / f"{kind}.en-{code}.en"),
                    lines(fetched / f"{kind}.en-{code}.{code}"),
                    strict=True,
                )
            )
            for kind in ("train_disjoint", "train")
        )
        assert rows and set(rows) <= set(every)
        sentences_so_far += [english for english, _ in rows]
    assert len(sentences_so_far) == len(set(sentences_so_far)) >= len(TRAIN) - 1


def test_the_corpora_and_their_mixtures(fetched):
    for name in ("libreoffice_help", "libreoffice_help_disjoint"):
        corpus, row = get_corpus(name), PUBLISHED[name]
        assert corpus.languages == ("en", "de", "fr", "es", "it", "pt", "cs")
        assert set(row.supervised) == {
            p for c in corpus.languages[1:] for p in (("en", c), (c, "en"))
        }
        assert (MIXTURES[name].directions, MIXTURES[name].temperature) == (row.supervised, 1.0)
        assert set(row.supervised) <= set(corpus.directions("train"))
        for split in ("validation", "test"):
            assert len(corpus.directions(split)) == 42
            assert len(zero_shot_directions(corpus, row.supervised, split)) == 30
        assert len(row.zero_shot) == 30
    full, disjoint = get_corpus("libreoffice_help"), get_corpus("libreoffice_help_disjoint")
    assert full.size("train", ("de", "en")) == 10 and disjoint.size("train", ("de", "en")) < 5
    # Every other pair can be trained on too, with what all languages have.
    assert full.size("train", ("de", "fr")) == 8
    assert len(disjoint.directions("train")) == 12


def test_pages_are_documents(fetched):
    for name, split, keys in (
        ("libreoffice_help", "train", "train.en-de.keys"),
        ("libreoffice_help", "test", "test.keys"),
        ("libreoffice_help_disjoint", "train", "train_disjoint.en-de.keys"),
    ):
        corpus = get_corpus(name)
        pages = list(documents(corpus, split, ("de", "en")))
        assert [pair for page in pages for pair in page] == list(corpus.pairs(split, ("de", "en")))
        numbers = Counter(line.split("\t")[0] for line in lines(fetched / keys))
        assert [len(page) for page in pages] == list(numbers.values())
    assert Counter(map(len, documents(get_corpus("libreoffice_help"), "train", ("en", "de"))))[2]


def test_the_record_lists_the_contents_of_the_files(fetched, capsys):
    record = json.loads((fetched / "corpus.json").read_text(encoding="utf-8"))
    assert record["corpus"] == "libreoffice_help" and record["packages"] == []
    names = {path.name for path in fetched.iterdir()} - {"corpus.json"}
    assert set(record["files"]) == names and len(names) == 60
    for name, facts in record["files"].items():
        assert facts["lines"] == len(lines(fetched / name))
        assert facts["sha256"] == sha256_of(fetched / name)


def test_corpora_are_reproducible(fetched, tree, tmp_path):
    command(
        "fetch_corpus", "libreoffice_help", f"--from={tree / HELP_PATH}", "--output", tmp_path / "b"
    )
    assert {p.name: p.read_bytes() for p in fetched.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()
    }


# In the place of Debian's programs: a package is a tar file, and the archive is a folder.
APT_GET = """#!/bin/sh
[ "$1" = download ] || exit 9
shift
for name in "$@"; do
  cp "$ARCHIVE"/${name}_*.deb . || { echo "W: a warning"; echo "E: no $name" >&2; exit 100; }
done
"""
DPKG_DEB = r"""#!/bin/sh
case $1 in
--showformat=*) file=${3##*/}; printf '%s\t%s' "${file%%_*}" 4:7.4 ;;
--fsys-tarfile) tar -tf "$2" > /dev/null && cat "$2" ;;
esac
"""


@pytest.fixture
def debian(tree, tmp_path, monkeypatch):
    """Make fake Debian programs and the packages of the tree."""
    archive, programs = tmp_path / "archive", tmp_path / "bin"
    archive.mkdir()
    programs.mkdir()
    for code, folder in HELP_FOLDERS.items():
        with tarfile.open(archive / f"{help_package(code)}_7.4_all.deb", "w") as file:
            file.add(tree / HELP_PATH / folder, f"{HELP_PATH}/{folder}")
    for name, text in (("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("ARCHIVE", str(archive))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return archive


@pytest.mark.parametrize("source", ["apt-get", "files"])
def test_packages_are_fetched_unpacked_and_recorded(debian, fetched, tmp_path, source, capsys):
    capsys.readouterr()
    flags = [f"--from={debian}"] if source == "files" else []
    command("fetch_corpus", "libreoffice_help", *flags, "--output", tmp_path / "out")
    printed = json.loads(capsys.readouterr().out)
    record = json.loads((tmp_path / "out" / "corpus.json").read_text(encoding="utf-8"))
    counts = {name: facts["lines"] for name, facts in record["files"].items()}
    assert printed == {
        "output": str(tmp_path / "out"),
        "packages": record["packages"],
        "lines": counts,
    }
    assert record["packages"] == [
        {
            "name": help_package(code),
            "version": "4:7.4",
            "sha256": sha256_of(debian / f"{help_package(code)}_7.4_all.deb"),
        }
        for code in HELP_LANGUAGES
    ]
    assert record["files"] == json.loads((fetched / "corpus.json").read_text())["files"]


def refused(tmp_path, message, *flags):
    """Assert that the command fails with one line and leaves no files."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=message) as caught:
        command("fetch_corpus", "libreoffice_help", "--output", tmp_path / "out", *flags)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_failed_downloads_are_one_error_line(debian, tmp_path, monkeypatch):
    remedy = "or give a folder with the package files libreoffice-help-en-us .* with --from FOLDER"
    (debian / f"{help_package('it')}_7.4_all.deb").unlink()
    refused(tmp_path, rf"apt-get failed \(E: no libreoffice-help-it\); 'apt-get update' .*{remedy}")
    refused(tmp_path, "archive: no pages of libreoffice-help-it, packed or", f"--from={debian}")
    (debian / f"{help_package('it')}_8_all.deb").write_bytes(b"no package")
    refused(tmp_path, r"-it_8_all\.deb: dpkg-deb failed \(.*; copy or", f"--from={debian}")
    (debian / f"{help_package('it')}_9_all.deb").write_bytes(b"no package")
    refused(tmp_path, "-it_8_all.deb and libreoffice-help-it_9_all.deb; remove", f"--from={debian}")
    refused(tmp_path, "absent: no such folder", f"--from={tmp_path / 'absent'}")
    file = debian / f"{help_package('it')}_9_all.deb"
    refused(tmp_path, "_9_all.deb: is a file, not a folder; .*--from FOLDER", f"--from={file}")
    for path in debian.glob(f"{help_package('it')}_*"):
        path.unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    refused(tmp_path, f"apt-get is not installed.*{remedy}")
    refused(tmp_path, "dpkg-deb is not installed", f"--from={debian}")


def test_pages_without_sentences_are_skipped(tree, tmp_path):
    for path in tree.rglob(f"page{TEST[0]}.html"):
        path.unlink()
    for path in tree.rglob(f"page{TEST[1]}.html"):
        path.write_text("<p>Of another form</p>")
    refused(tmp_path, "no test sentence exists in all languages", f"--from={tree}")


def test_an_existing_folder_is_overwritten_only_on_request(fetched, tree, tmp_path, monkeypatch):
    before = (fetched / "train.de").read_bytes()
    with pytest.raises(UserError, match="already exists"):
        command("fetch_corpus", "libreoffice_help", "--from", tree)
    (fetched / "train.de").write_text("damaged")
    command("fetch_corpus", "libreoffice_help", "--from", tree, "--overwrite")
    assert (fetched / "train.de").read_bytes() == before
    with pytest.raises(UserError):
        command("fetch_corpus", "libreoffice_help", "--from", fetched, "--overwrite")
    with monkeypatch.context() as patch, pytest.raises(UserError, match="is the current folder"):
        patch.chdir(fetched)
        command("fetch_corpus", "libreoffice_help", "--from", tree, "--overwrite", "--output=.")
    assert (fetched / "train.de").read_bytes() == before
    (fetched / "corpus.json").unlink()
    with pytest.raises(UserError, match="already exists"):
        command("fetch_corpus", "libreoffice_help", "--from", tree, "--overwrite")


def add_link(archive, name, target, kind=tarfile.SYMTYPE):
    """Append a link to a package, and a file below its name."""
    with tarfile.open(archive, "a") as file:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = kind, str(target)
        file.addfile(link)


def add_file(archive, name, content=b"text"):
    with tarfile.open(archive, "a") as file:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        file.addfile(member, io.BytesIO(content))


def package(debian, code):
    return debian / f"{help_package(code)}_7.4_all.deb"


PAGES = f"./{HELP_PATH}/en-US/text"


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("./link", "/elsewhere", "'./link' is a link that leads out of the package, to '/else"),
        ("./a/link", "../..", "'./a/link' is a link that leads out of the package"),
        (f"{PAGES}/p.html", "/etc/passwd", "p.html' is a link that leads out"),
        (f"{PAGES}/p.html", "a.html", "p.html' is neither a file nor a folder"),
        ("./usr/share", "lib", "'./usr/share' is neither a file nor a folder"),
        ("../escaped", None, r"'../escaped' leads out of the package"),
        ("/escaped", None, r"'/escaped' leads out of the package"),
        (f"{PAGES}/a\nb.html", None, "has control characters"),
    ],
)
def test_a_package_cannot_write_outside_its_tree(debian, tmp_path, name, target, message):
    if target:
        add_link(package(debian, "en"), name, target)
    else:
        add_file(package(debian, "en"), name)
    refused(tmp_path, rf"-en-us_7.4_all.deb: .*{message}.*; do not use", f"--from={debian}")


def test_each_package_has_its_own_tree(debian, tmp_path):
    """A link in the first package does not redirect files of the second one."""
    (tmp_path / "elsewhere").mkdir()
    add_link(package(debian, "en"), "./link", "usr")
    add_file(package(debian, "de"), f"./link/share/libreoffice/help/de/text/{name_of(0)}")
    page = f"{HELP_PATH}/fr/text/{name_of(0)}"
    add_file(package(debian, "de"), page, b"<p id='par_id1'>Not of the French package.</p>")
    command("fetch_corpus", "libreoffice_help", f"--from={debian}", "--output", tmp_path / "out")
    assert plain("fr", 0) in lines(tmp_path / "out" / "train.fr")
    assert plain("de", 0) in lines(tmp_path / "out" / "train.de")
    assert not (tmp_path / "out" / "packages").exists()


def test_an_oversized_package_is_refused(debian, tmp_path, monkeypatch):
    monkeypatch.setattr(debian_packages, "MAX_UNPACKED_BYTES", 1 << 20)
    add_file(package(debian, "de"), "./zeros", bytes(1 << 20))
    refused(tmp_path, r"-de_7.4_all.deb: holds more than .* 1 MiB", f"--from={debian}")
    monkeypatch.setattr(debian_packages, "MAX_UNPACKED_BYTES", 1 << 30)
    monkeypatch.setattr(debian_packages, "MAX_MEMBERS", 10)
    refused(tmp_path, r"_7.4_all.deb: holds more than 10 files", f"--from={debian}")


def test_a_link_out_of_the_folder_is_not_read(tree, tmp_path):
    secret = tmp_path / "secret.html"
    secret.write_text("<p id='par_id1'>A local secret that nobody should read here.</p>")
    page = tree / HELP_PATH / "fr" / "text" / name_of(0)
    page.unlink()
    page.symlink_to(secret)
    refused(tmp_path, "page0.html: is a link to .*replace the link", f"--from={tree}")
    page.unlink()
    page.write_text("x" * (MAX_PAGE_BYTES + 1))
    refused(tmp_path, "page0.html: is larger than 4 MiB", f"--from={tree}")
    pages = tree / HELP_PATH / "fr"
    pages.rename(tmp_path / "french")
    pages.symlink_to(tmp_path / "french")
    refused(tmp_path, "fr/text: is a link to .*outside of .*tree", f"--from={tree}")


def test_files_of_a_killed_download_are_removed(debian, tmp_path, monkeypatch):
    """Downloads and trees are beside the output, and nothing is in the system's folder."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = tmp_path / f".out.partial-{socket.gethostname()}-{dead.pid}"
    (left / "packages").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "mkdtemp", None)
    command("fetch_corpus", "libreoffice_help", f"--from={debian}", "--output", tmp_path / "out")
    assert not left.exists() and not list(tmp_path.glob(".out*"))


def test_packages_are_found_by_a_relative_path(debian, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("fetch_corpus", "libreoffice_help", "--from=archive", "--output=out")
    assert len(lines(tmp_path / "out" / "test.en")) == len(TEST)


def test_repetitive_pages_are_parsed_in_linear_time(tmp_path):
    """With many equal ids, unmatched end tags and abbreviations."""
    count = 100_000
    texts = [("par_id1", "<i>x</b>")] * count + [("par_id2", "See e.g. A " * (2 * count))]
    write_page(tmp_path, "en", 0, texts)
    code = """
import sys
from collections import Counter
from pathlib import Path
from mnmt_jax.data import libreoffice_pages
libreoffice_pages.MAX_PAGE_BYTES = 1 << 26
found = libreoffice_pages.paragraphs(Path(sys.argv[1]))
print(len(found), len(libreoffice_pages.sentences(found["par_id2"])))
"""
    done = run_limited(code, tmp_path / HELP_PATH / "en-US" / "text" / name_of(0))
    assert done.stdout.split() == [str(count + 2), "1"], done.stderr
