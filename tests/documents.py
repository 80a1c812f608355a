"""Runs the commands of README and docs/ as they stand there, on models too small to learn.

Every code block without a language is shell, every `python` block is Python, and a code span that
starts like a command is one; what is neither stands in a `text` block. A page's commands run one
after the other in a folder that looks like the repository. Three tables say all that differs from
the page: `SHORTENED`, `REPLACED`, and `LISTED` for what no test machine can run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from mnmt_jax.commands.mnmt import module_of
from mnmt_jax.config.loading import load_config
from tests.fresh_process import serve_starts
from tests.made_run import KEEP_ALL_PROGRAMS, one_device
from tests.run_commands import ROOT, SCRIPTS, call

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)

_WIDTH = ("--gin.Model.embed=16", "--gin.Model.mlp=24", "--gin.Model.heads=2")
_UPDATES = (
    "--gin.Train.steps=2",
    "--gin.Train.log_every=1",
    "--gin.Optimizer.warmup_steps=1",
    "--gin.Optimizer.accumulate=1",
)
_ROWS = ("--gin.Data.rows=8", "--gin.Data.source_length=64", "--gin.Data.target_length=64")
_FEW_PIECES = ("--vocab_size=60", "--no-byte_fallback")
_SEARCH = ("--gin.Decode.buckets=(64,)", "--gin.Decode.batch=8", "--gin.Decode.max_length=4")
_T5X = (
    "--gin.MIXTURE_OR_TASK_MODULE='tests.t5x.made_tasks'",
    "--gin.MIXTURE_OR_TASK_NAME='t5x_made_de_en'",
    "--gin.Data.validation_examples=4",
    "--gin.Data.rows=4",
    "--gin.Train.save_every=2",
    "--gin.Train.eval_every=2",
)
# What is added to a command whose arguments match the pattern; a later flag overrides an earlier.
SHORTENED: tuple[tuple[str, tuple[str, ...]], ...] = (
    # Small models, few updates, short rows, hypotheses of a few tokens.
    ("scripts/train.py *gin_configs/models/*", _WIDTH),
    ("scripts/train.py *_tiny.gin*", ("--gin.Model.stage_layers=(1,)",)),
    ("scripts/train.py *gin_configs/models/two_stage*", ("--gin.Model.stage_layers=(1, 1)",)),
    ("scripts/train.py *_iwslt17.gin*", ("--gin.Model.stage_layers=(1, 1)",)),
    ("scripts/train.py *encoder_decoder_tiny.gin*", ("--gin.Model.stage_layers=(2, 2)",)),
    ("scripts/train.py *grafted_tiny.gin*", ("--gin.Model.stage_layers=(2, 1, 1)",)),
    ("scripts/train.py *lamate*", ("--gin.Model.stage_layers=(1, 1, 1)", "--gin.LaMaTE.group=1")),
    ("scripts/train.py *grafted_tiny.gin*", ("--gin.Graformer.encoder_layers=1",)),
    # A published model's vocabulary is its own; a made cache has another.
    ("scripts/train.py *_ted19.gin*", ("--gin.Model.vocab_size=0",)),
    ("scripts/train.py *_iwslt17.gin*", ("--gin.Model.vocab_size=0",)),
    ("scripts/train.py *", (*_UPDATES, *_ROWS, *_SEARCH)),
    ("scripts/infer.py *", _SEARCH),
    ("scripts/sample.py *", _SEARCH),
    ("scripts/score.py *", _SEARCH),
    ("scripts/back_translate.py *", (*_UPDATES, *_ROWS, *_SEARCH)),
    ("scripts/evaluate.py *--task?cldr_quickstart *", ("--limit=1",)),
    ("scripts/evaluate.py *--task=flores *", ("--limit=1", *_SEARCH)),
    ("scripts/analyse.py *--task=flores *", ("--limit=1", *_SEARCH)),
    ("scripts/analyse.py *--run=RUN2 *--task=flores *", ("--limit=4",)),
    ("scripts/analyse.py retrieval *", ("--limit=4",)),
    ("scripts/benchmark.py *", ("--sentences=3", "--repeats=2", *_SEARCH)),
    ("scripts/analyse.py s[it]* *--task=flores *", ("--limit=3",)),
    ("scripts/analyse.py probe *", ("--updates=20",)),
    ("scripts/analyse.py *--input*", _SEARCH),
    ("scripts/evaluate.py *--task=ted19 *", ("--limit=1", *_SEARCH)),
    ("scripts/evaluate.py *--task=iwslt17 *", ("--limit=1", *_SEARCH)),
    # One or three of the six directions, and as few pieces as made text has.
    ("scripts/cache_tasks.py --mixture cldr_quickstart *", ("--directions=en-de,en-fr,en-cs",)),
    ("scripts/cache_tasks.py --mixture cldr_quickstart --vocabulary *", ("--directions=en-cs",)),
    ("scripts/cache_tasks.py --parallel * --vocab_size *", _FEW_PIECES),
    ("scripts/cache_tasks.py --text * --vocab_size *", _FEW_PIECES),
    ("scripts/train_vocabulary.py --mixture *", ("--sentences=8000", "--vocab_size=1000")),
    ("scripts/train_vocabulary.py --parallel *", _FEW_PIECES),
    ("scripts/train_vocabulary.py --lavs *", ("--directions=en-cs",)),
    # The text of five languages, where sixty pieces are fewer than characters.
    ("scripts/make_corpus.py *--languages en,de,fr,cs,nl *", ("--train=300", "--validation=8")),
    ("scripts/cache_tasks.py *--name old *", ("--vocab_size=560",)),
    ("scripts/add_language.py *", ("--vocab_size=150",)),
    (
        "scripts/make_corpus.py --languages en,de,fr *",
        ("--train=300", "--validation=8", "--test=3"),
    ),
    ("scripts/cache_tasks.py *--name mine --vocab_size 1000 *", ("--vocab_size=500",)),
    ("scripts/evaluate.py --run=runs/mine/trial *", ("--limit=1", *_SEARCH)),
    ("scripts/evaluate.py *--task=phrases *", ("--limit=1", *_SEARCH)),
    ("benchmarks/cldr_rendering.py*", ("--meanings=20", "--inventory=small")),
    (
        "benchmarks/data_pipeline.py*",
        ("--workers=0,1", "--examples=40", "--chunk_examples=300", "--seconds=0.1", "--rounds=1"),
    ),
    ("benchmarks/preparation_steps.py*", ("--pairs=30",)),
    ("-m tests.slow_steps *", ("--pairs=300",)),
    ("benchmarks/saves.py *", ("--saves=1", "--updates=1", *_UPDATES, *_ROWS)),
    ("benchmarks/saves.py *", (*_WIDTH, "--gin.Model.stage_layers=(1,)")),
    ("-m t5x.*", (*_WIDTH, "--gin.Model.stage_layers=(1,)", *_UPDATES, *_ROWS, *_SEARCH, *_T5X)),
)
# What is replaced in a page's text.
REPLACED: Mapping[str, str | Callable[[], str]] = {
    "--mixture MIXTURE ": "--mixture flores_finetune_5 ",
    "--rounds=2 --gin.Train.steps=250": "--rounds=1",
    "round_2": "round_1",
    "de,fr,cs": "de,fr",  # of the made cache's languages
    "('de', 'fr', 'cs')": "('de', 'fr')",
    "localhost:12355": lambda: f"localhost:{_free_port()}",
    "PAPER/TABLE": "language_layers/table7",
    "checkpoint_300": "checkpoint_2",  # the last of as many updates as `SHORTENED` says
}
# The test that runs a page's commands.
RUN_BY: Mapping[str, str] = {
    "README.md": "tests/system/test_readme.py",
    "docs/analysis.md": "tests/system/test_documents.py",
    "docs/checkpoints.md": "tests/system/test_documents.py",
    "docs/configurations.md": "tests/system/test_documents.py",
    "docs/data.md": "tests/system/test_documents.py",
    "docs/distributed.md": "tests/system/test_documents.py",
    "docs/evaluation.md": "tests/system/test_documents.py",
    "docs/finetuning.md": "tests/system/test_finetuning.py",
    "docs/graft.md": "tests/system/test_documents.py",
    "docs/guide.md": "tests/system/test_documents.py",
    "docs/methods.md": "tests/system/test_documents.py",
    "docs/recipes.md": "tests/system/test_documents.py",
    "docs/scale.md": "tests/system/test_documents.py",
    "docs/serving.md": "tests/system/test_documents.py",
    "docs/reproduce.md": "tests/system/test_documents.py",
    "docs/t5x.md": "tests/t5x/test_page.py",
    "docs/tutorials/add_language.md": "tests/system/test_finetuning.py",
    "docs/tutorials/finetune_imported.md": "tests/system/test_finetuning.py",
    "docs/tutorials/own_method.md": "tests/system/test_documents.py",
    "docs/tutorials/own_text.md": "tests/system/test_documents.py",
    "docs/tutorials/zero_shot.md": "tests/system/test_documents.py",
}
# What no test machine can run, by how it starts, and why not. The flags of the project's own
# commands among them are checked all the same.
LISTED: Mapping[str, str] = {
    ". .venv/bin/activate": "the suite has an environment of its own",
    "bash benchmarks/seeds.sh": "six trainings and evaluations",
    "bash scripts/docs.sh": "tests/system/test_site.py builds the site",
    "bash scripts/test.sh": "it is this suite",
    "bash scripts/test_beam.sh": "it installs Apache Beam and runs tests/beam",
    "bash scripts/test_extras.sh": "it resolves every extra with a package index",
    "bash scripts/test_gpu.sh": "it installs JAX for GPUs and runs tests/gpu",
    "bash scripts/test_metrics.sh": "it installs COMET and runs tests/metrics",
    "bash scripts/test_tables.sh": "it runs tests/tables, more than an hour",
    "bash scripts/test_tpu.sh": "it installs libtpu and runs tests/tpu",
    "gcloud ": "needs an account of Google Cloud",
    "hf download ": "downloads a model",
    "mnmt add-language --run=runs/iwslt17/sd": "needs the files of IWSLT 2017 and a trained run",
    "mnmt cache --mixture cldr_quickstart --vocabulary runs": "a made vocabulary lacks Czech",
    "mnmt cache --mixture europarl_centric": "needs the files of Europarl",
    "mnmt cache --mixture multiun": "needs the files of MultiUN",
    "mnmt cache --mixture=iwslt17_de": "needs the files of IWSLT 2017 and a trained run",
    "mnmt compare BASE_1/report": "needs runs of several seeds; tests/unit/test_seed_statistics.py",
    "mnmt compile-ahead": "needs libtpu: tests/tpu runs the small one",
    "mnmt evaluate --run=RUN --task=iwslt17": "needs the files of IWSLT 2017",
    "mnmt evaluate --run=RUN --task=flores --output=LID": "needs fastText's model, a download",
    "mnmt evaluate --run=runs/europarl/tpdm": "needs the files of Europarl and a trained run",
    "mnmt evaluate --run=runs/iwslt17_de": "needs the files of IWSLT 2017 and a trained run",
    "mnmt evaluate --run=runs/multiun": "needs the files of MultiUN and a trained run",
    "mnmt fetch ": "downloads packages of Debian; tests/unit makes pages in their form",
    "mnmt metrics ": "installs PyTorch and COMET; bash scripts/test_metrics.sh",
    "mnmt train --gin.Data.weights": "needs a cache with prompts; tests/system/test_learning.py",
    "mnmt train --gin.Model.methods=\"('lcs',)\"": "tests/system/test_learning.py trains one",
    "mnmt train --gin.Model.methods=\"('tpdm',)\"": "tests/system/test_learning.py trains one",
    "mnmt train --gin.Train.methods=\"('mrasp2',)\"": "tests/system/test_learning.py trains one",
    "mnmt train --gin_file=gin_configs/models/tpdm_base.gin": "needs the files of its corpora",
    "mnmt train --gin_file=gin_configs/models/register_mitre_466m.gin": "needs GPUs and NLLB text",
    "mnmt train --gin_file=runs/iwslt17_de": "needs the files of IWSLT 2017 and a trained run",
    "mnmt vocabulary --mixture europarl_centric": "needs the files of Europarl",
    "mnmt vocabulary --mixture multiun": "needs the files of MultiUN",
    "mnmt vocabulary --mixture opus100_all": "needs the files of OPUS-100",
    "pip install ": "installs packages",
    "python benchmarks/byte_fallback.py --mixture multi30k": "needs the files of Multi30k",
    "python benchmarks/capitals.py": "needs a model and its test text",
    "python benchmarks/check_rates.py": "needs NTREX-128",
    "python benchmarks/checkpoints.py": "writes a model of 3.4 GiB three times",
    "python benchmarks/glossaries.py": "needs a model and the help pages of LibreOffice",
    "python benchmarks/language_routing.py": "takes minutes for each of three numbers of languages",
    "python benchmarks/retry_off_target.py": "needs a trained model and its test text",
    "python benchmarks/serving_load.py": "needs a trained model, and takes minutes",
    "python benchmarks/serving_steps.py": "needs a trained model, and takes minutes",
    "python benchmarks/search_settings.py": "needs a trained model and its test text",
    "python benchmarks/sentence_splitting.py": "needs NTREX-128 and two other splitters",
    "python benchmarks/tag_placement.py": "needs a trained model",
    "python benchmarks/update_cost.py": "compiles and runs three updates",
    "python scripts/list_api.py": "tests/unit/test_list_api.py",
    "python scripts/list_rooms.py": "tests/unit/test_rooms.py reads what it lists",
    "python scripts/make_configuration_table.py": "tests/unit makes the page it prints",
    "python scripts/make_tpu_table.py": "needs libtpu and minutes for each of eight rows",
    "python scripts/update_walk.py": "it edits docs/walk.md; tests/unit/test_docs.py",
}
# For `check_flags`: the arguments are written to the file CALLS, and nothing is run.
_WRITE_CALLS = """if [ -n "${CALLS:-}" ]; then printf '%s\\0' "$@" '' >> "$CALLS"; exit; fi"""
_MNMT = "from mnmt_jax.commands.mnmt import run; run()"
# Commands of the pages that write to one folder by turns: what the first makes is kept.
_ALTERNATIVES = ("import_checkpoint", "export_checkpoint", "train_vocabulary", "cache_tasks")
# `mnmt NAME` alone is the name of a command in a sentence.
_STARTS = re.compile(r"(?!mnmt [\w-]+$)(\w+=\S+ )*(bash|gcloud|mnmt|pip|python|taskset|\.) ")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")


@dataclasses.dataclass(frozen=True)
class Command:
    """What a page tells its reader to run."""

    text: str
    language: str = "shell"

    @property
    def listed(self) -> str:
        """The beginning under which it stands in `LISTED`; empty if it is run."""
        return next((start for start in LISTED if self.text.startswith(start)), "")


def commands(page: str) -> list[Command]:
    """Returns the commands of a page in their order."""
    text, found = (ROOT / page).read_text(encoding="utf-8"), []
    for match in re.finditer(rf"{_FENCE.pattern}|{_SPAN.pattern}", text, _FENCE.flags):
        language, block, span = match.groups()
        if span is not None:
            found += [Command(joined)] if _STARTS.match(joined := " ".join(span.split())) else []
        elif language == "python":
            found.append(Command(block, language))
        elif not language:
            found += map(Command, _split(block))
    return found


def _split(block: str) -> Iterator[str]:
    """Yields the commands of a block: a line with those that continue it, or a whole loop."""
    lines: list[str] = []
    for line in block.splitlines():
        lines.append(line)
        if not line.endswith("\\") and (lines[0][:4] != "for " or line.startswith("done")):
            yield "\n".join(lines)
            lines = []
    assert not lines, f"the block ends within a command: {lines}"


def make_root(folder: Path) -> Path:
    """Makes a folder that looks like the repository; its `python` and `mnmt` add what shortens."""
    for name in ("benchmarks", "gin_configs", "scripts"):
        (folder / name).mkdir(parents=True)
        for path in (ROOT / name).iterdir():
            (folder / name / path.name).symlink_to(path)
    (folder / "docs").mkdir()
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    cases = (
        f'case "$given" in {_pattern(pattern)}) set -- "$@" {shlex.join(flags)};; esac'
        for pattern, flags in SHORTENED
    )
    python.write_text("\n".join(("#!/bin/sh", _WRITE_CALLS, "given=$*", *cases, start_python())))
    python.chmod(0o755)
    mnmt = folder / "bin" / "mnmt"
    scripts = (f"{name}) script={script};;" for name, script in SCRIPTS.items())
    mnmt.write_text(
        f'#!/bin/sh\ncase $1 in {" ".join(scripts)} *) exec {sys.executable} -c "{_MNMT}" "$@";; '
        f'esac\nshift\nexec {python} $script "$@"\n'
    )
    mnmt.chmod(0o755)
    environment = folder / "scripts" / "environment.sh"
    environment.unlink()  # it would install everything
    environment.write_text(f"prepare_environment() {{ python={python}; }}\n")
    return folder


def start_python() -> str:
    """Returns the lines of a shell script that become Python with the script's arguments.

    A script of the project need not import again what `fresh_process` has imported.
    """
    asking = shlex.join([sys.executable, "-S", str(ROOT / "tests" / "start_script.py")])
    return f"""case $1 in *.py) exec {asking} {serve_starts()} "$@";; esac
exec {sys.executable} "$@\""""


def _pattern(pattern: str) -> str:
    """Returns a pattern of `fnmatch` as the shell writes it."""
    return "".join(p if p in "*?" else shlex.quote(p) for p in re.split(r"([*?])", pattern) if p)


def shell(root: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Runs shell commands in a folder of `make_root`."""
    environment = os.environ | {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        **KEEP_ALL_PROGRAMS,
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        capture_output=True,
        text=True,
        cwd=root,
        env=environment,
    )
    assert done.returncode == 0, f"{text}\n{done.stderr[-5000:]}"
    return done


def run_page(page: str, root: Path) -> dict[str, str]:
    """Runs a page's commands in a folder of `make_root`; checks the flags of those in `LISTED`.

    Returns:
        What each printed, by its text.
    """
    printed = {}
    with contextlib.chdir(root):
        for one in commands(page):
            if one.listed:
                check_flags(one, root)
            else:
                printed[one.text] = _run(one, root)
    assert printed or not commands(page)
    return printed


def _run(one: Command, root: Path) -> str:
    text = one.text
    for word, given in REPLACED.items():
        text = text.replace(word, given if isinstance(given, str) else given())
    if one.language == "python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, "page", "exec", dont_inherit=True), {"__name__": "page"})
        return printed.getvalue()
    arguments = _plain(text)
    with _first_kept(arguments or []):
        return _in_this_process(arguments) if arguments else shell(root, text).stdout


def _plain(text: str) -> list[str]:
    """Returns script and arguments if the shell has nothing to do but to start Python."""
    tokens = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    words = list(tokens)
    operators = any(set(word) <= set("();<>|&") for word in words) or "$" in text
    if words[0] == "mnmt" and words[1] in SCRIPTS:
        words = ["python", SCRIPTS[words[1]], *words[2:]]
    return words[1:] if words[0] == "python" and words[1][:1] != "-" and not operators else []


def _in_this_process(arguments: list[str]) -> str:
    with one_device(), contextlib.redirect_stdout(_Printed()) as printed:
        call(arguments[0], [*arguments[1:], *shortening(arguments)])
    return printed.getvalue()


def shortening(arguments: Sequence[str]) -> list[str]:
    """Returns what `SHORTENED` adds to a script and its arguments."""
    given = " ".join(arguments)
    return [f for pattern, fs in SHORTENED if fnmatch.fnmatchcase(given, pattern) for f in fs]


@contextlib.contextmanager
def _first_kept(arguments: list[str]) -> Iterator[None]:
    """Puts aside what an alternative above has made in the same place, and puts it back after."""
    named = re.search(r"--output[= ](\S+)", " ".join(arguments))
    output = Path(named[1]) if named else Path()
    if not named or Path(arguments[0]).stem not in _ALTERNATIVES or not output.exists():
        yield
        return
    aside = output.rename(output.with_name(f"{output.name}.first"))
    yield
    assert any(output.iterdir())
    shutil.rmtree(output)
    aside.rename(output)


class _Accepted(Exception):
    """What a parser made of the arguments."""


def check_flags(one: Command, root: Path) -> None:
    """Asserts that every command of the project that a listed command starts takes its flags."""
    if not one.text.startswith(("python ", "mnmt ", "bash benchmarks/")):
        return
    start, name, *arguments = shlex.split(one.text)
    if start == "mnmt" and name not in SCRIPTS:
        module_of(name).make_parser().parse_args(arguments)
        return
    calls = root / "calls"
    shell(root, f"export CALLS={calls}\n{one.text}")
    found = [call.split("\0") for call in calls.read_text(encoding="utf-8").split("\0\0")[:-1]]
    calls.unlink()
    assert found, one.text
    for script, *arguments in found:
        _parse(script, arguments)


def _parse(script: str, arguments: list[str]) -> None:
    """Parses flags as a script does, and loads the gin files that they name."""
    parse = argparse.ArgumentParser.parse_args

    def accept(*given: object) -> None:
        raise _Accepted(parse(*given))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(_Accepted) as accepted:
        patch.setattr(argparse.ArgumentParser, "parse_args", accept)
        call(script, arguments)
    (flags,) = accepted.value.args
    if files := getattr(flags, "gin_file", None):
        bindings = [a.removeprefix("--gin.") for a in arguments if a.startswith("--gin.")]
        load_config(files, bindings)


class _Printed(io.StringIO):
    """What is printed, whatever its encoding is set to."""

    def reconfigure(self, **_: object) -> None:
        """Does nothing: it is text."""


def _free_port() -> int:
    with socket.socket() as given:
        given.bind(("localhost", 0))
        return given.getsockname()[1]
