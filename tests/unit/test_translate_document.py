"""`mnmt translate --document`: a document in, a document out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mnmt_jax.commands import document_translation, translate
from mnmt_jax.commands.document_translation import warn_of_terms
from mnmt_jax.decoding.text.sentence_job import SentenceJob
from mnmt_jax.decoding.text.translated_text import SentenceTranslation, TextTranslation
from mnmt_jax.decoding.translator import Translator
from mnmt_jax.errors import MnmtWarning, UserError
from tests.unit.made_documents import make_docx, paragraphs
from tests.unit.made_language_model import write_made_run
from tests.unit.made_translator import made_translator

DOCUMENT = "word/document.xml"
CONTENT = "<w:r><w:t>{}</w:t></w:r><w:r><w:tab/></w:r><w:r><w:t>12</w:t></w:r>"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_made_run(tmp_path_factory.mktemp("run") / "run", made_translator("1", "register"))


@pytest.fixture
def command(run, tmp_path, monkeypatch):
    (tmp_path / "in.docx").write_bytes(make_docx(f"<w:p>{CONTENT.format('one two')}</w:p>"))

    def call(*flags: str) -> Path:
        output = tmp_path / "out.docx"
        base = [f"--run={run}", "--source=en", "--target=de", f"--document={tmp_path / 'in.docx'}"]
        monkeypatch.setattr(
            "sys.argv", ["mnmt translate", *base, f"--output={output}", "--beam_size=1", *flags]
        )
        translate.main()
        return output

    return call


def test_a_document_is_translated_as_its_texts(run, command, capsys):
    output = command()
    translator = Translator.load(run)
    text = translator.translate_text("one two", source="en", target="de", beam_size=1).text
    assert text != "one two"
    assert paragraphs(output.read_bytes(), DOCUMENT) == [CONTENT.format(text)]
    assert f"{output}: 1 text translated" in capsys.readouterr().err


TMX = """<tmx version="1.4"><header srclang="en-GB"/><body><tu>
<tuv xml:lang="en-GB"><seg>one two</seg></tuv><tuv xml:lang="de-CH"><seg>eins</seg></tuv>
</tu></body></tmx>"""


def test_a_file_is_translated_into_the_region_that_was_asked_for(run, tmp_path, monkeypatch):
    """The model knows the language without regions; what another region has stays."""
    (tmp_path / "in.tmx").write_text(TMX)
    flags = f"--run={run} --source=en-GB --document={tmp_path}/in.tmx --output={tmp_path}/out.tmx"
    flags += " --overwrite_translations --target="
    for target, languages in (("de_AT", ["en-GB", "de-AT", "de-CH"]), ("de", ["en-GB", "de-CH"])):
        monkeypatch.setattr("sys.argv", ["mnmt translate", *f"{flags}{target}".split()])
        translate.main()
        written = (tmp_path / "out.tmx").read_text()
        assert re.findall('xml:lang="(.*?)"', written) == languages
        assert ("<seg>eins</seg>" in written) == (target == "de_AT")


def test_samples_do_not_depend_on_how_texts_are_divided(command, tmp_path, monkeypatch):
    texts = ["one two", "three house", "one two"]
    content = "".join(f"<w:p>{CONTENT.format(text)}</w:p>" for text in texts)
    (tmp_path / "in.docx").write_bytes(make_docx(content))
    expected = paragraphs(command("--gin.Decode.temperature=1.0").read_bytes(), DOCUMENT)
    monkeypatch.setattr(document_translation, "_PROGRESS_CHUNK", 1)
    assert paragraphs(command("--gin.Decode.temperature=1.0").read_bytes(), DOCUMENT) == expected
    assert expected[0] != expected[2]


def test_a_glossary_applies(command, tmp_path):
    plain = command().read_bytes()
    (tmp_path / "terms.tsv").write_text("one\tgreen\n", encoding="utf-8")
    (text,) = paragraphs(command(f"--glossary={tmp_path / 'terms.tsv'}").read_bytes(), DOCUMENT)
    assert "green" in text and "green" not in paragraphs(plain, DOCUMENT)[0]


def test_equal_languages_are_warned_of(command):
    with pytest.warns(MnmtWarning, match="source and target are both 'en'"):
        command("--target=en")


def test_failed_translations_are_searched_again(command, monkeypatch):
    """The job of the command has the settings of further searches."""
    jobs = []
    translate_texts = SentenceJob.translate_texts
    monkeypatch.setattr(
        SentenceJob,
        "translate_texts",
        lambda job, *args, **options: jobs.append(job) or translate_texts(job, *args, **options),
    )
    command()
    command("--retry_off_target")
    assert [job.retry is not None for job in jobs] == [False, True]


def test_terms_that_are_not_honoured_are_named(capsys):
    sentences = [
        SentenceTranslation("one", "a", (), missing_terms=("one",)),
        SentenceTranslation("one", "b", (), missing_terms=("one",), forbidden_terms=("b",)),
    ]
    warn_of_terms([TextTranslation("a b", tuple(sentences)), TextTranslation("", ())])
    assert capsys.readouterr().err == (
        "warning: terms not translated as the glossary demands: one\n"
        "warning: forbidden terms in the translation: b\n"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--split_sentences"], "--split_sentences is for lines; leave it out with --document"),
        (["--format=jsonl"], "--format is for lines; leave it out with --document"),
        (["--markup=html"], "--markup is for lines; leave it out with --document"),
        (["--checks"], "--checks is for lines; leave it out with --document"),
        (["--retry_pivot=en"], "--retry_pivot is the pivot of --retry_off_target; add that flag"),
        (["--lid=no.bin"], "--lid=no.bin: is the detector of --retry_off_target and --checks;"),
        (["--", "--runner=Flink"], "--runner=Flink: flags after '--' are Beam's, which translates"),
        (["--input=x"], "--input is for lines; leave it out with --document"),
        (["--runner=beam"], "--runner is for lines; leave it out with --document"),
        (["--num_processes=2", "--process_id=0"], "--num_processes is for lines; leave it"),
        (
            ["--overwrite_translations"],
            "--overwrite_translations is for .po, .xliff, .xlf, .tmx",
        ),
        (
            ["--overwrite_translations", "--document="],
            "--overwrite_translations is for --document;",
        ),
        (["--output=/dev/stdout"], "name the file to write with --output"),
        (["--output=a.odt"], "--output=a.odt: must end in .docx, as --document does"),
        (["--document=no.docx"], "--document=no.docx: no such file"),
        (["--document=setup.cfg"], "setup.cfg: the file extension must be one of .txt, .md, .html"),
        (["--target=xh"], "--target"),
    ],
)
def test_bad_flags_are_refused_before_anything_is_written(command, tmp_path, flags, message):
    with pytest.raises(UserError, match=re.escape(message)):
        command(*flags)
    assert [path.name for path in tmp_path.iterdir()] == ["in.docx"]


def test_the_document_itself_is_not_replaced(command, tmp_path):
    with pytest.raises(UserError, match="is the file of --document and would be overwritten"):
        command(f"--output={tmp_path / 'in.docx'}")


def test_damaged_documents_leave_no_output(command, tmp_path):
    (tmp_path / "in.docx").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"in\.docx: is no complete zip archive; save the document"):
        command()
    assert [path.name for path in tmp_path.iterdir()] == ["in.docx"]
