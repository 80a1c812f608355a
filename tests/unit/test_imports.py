"""Imports of the core: no TensorFlow, seqio or t5x, and a fast --help."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from mnmt_jax.config.sections import Config, Data, Decode, Mesh, Model, Optimizer, Train
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.model.shapes import parameter_shapes
from mnmt_jax.runs.new_run import write_run
from tests.unit.made_text import vocabulary

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
FOREIGN = ("tensorflow", "seqio", "t5x")
TRANSLATING = "config data decoding design distributed errors files model runs vocabulary"
HEAVY = (*FOREIGN, "jax", "flax", "orbax", "grain", "sacrebleu", "sentencepiece")


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def core_modules() -> list[str]:
    package = ROOT / "mnmt_jax"
    interop = package / "interop"
    apart = {interop / name for name in ("seqio", "t5x", "tasks", "beam_inference.py")}
    paths = [path for path in package.rglob("*.py") if not apart & {path, *path.parents}]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return sorted(name.removesuffix(".__init__") for name in names)


def test_no_core_module_imports_tensorflow_seqio_or_t5x():
    modules = core_modules()
    assert len(modules) > 30
    imports = "\n".join(f"import {name}" for name in modules)
    actual = run(f"import sys\n{imports}\nprint([m for m in {FOREIGN} if m in sys.modules])")
    assert actual.strip() == "[]"


def test_the_package_itself_imports_nothing_heavy():
    actual = run(f"import sys, mnmt_jax\nprint([m for m in {HEAVY} if m in sys.modules])")
    assert actual.strip() == "[]"


def test_tensorboard_is_written_without_pytorch(tmp_path):
    """tensorboardX would import it where it is installed, as it is here."""
    actual = run(
        "import sys\nfrom pathlib import Path\n"
        "from mnmt_jax.training.trackers.tensorboard import TensorBoard\n"
        f"board = TensorBoard(Path({str(tmp_path)!r}), after_step=0)\n"
        "board.start({})\nboard.write(1, {'loss': 2.5})\nboard.end('finished')\n"
        "print('torch' in sys.modules)"
    )
    assert actual.strip() == "False" and list(tmp_path.iterdir())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_imports_nothing_heavy(script):
    """What makes `--help` fast, shown without a stopwatch: nothing slow is loaded first."""
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{script.name!r}, '--help']\n"
        "try:\n"
        f"    runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert "usage:" in done.stdout


def test_translating_imports_no_trainer(tmp_path):
    """Orbax always imports its checkpoint manager; none is created here."""
    model = Model(embed=16, mlp=24, heads=2, stage_layers=(1,))
    shapes = parameter_shapes(model, vocabulary().size)
    zeros = jax.tree.map(lambda one: LazyArray.of(np.zeros(one.shape, one.dtype)), shapes)
    config = Config(Data(), model, Optimizer(), Train(), Decode(), Mesh())
    write_run(tmp_path / "run", config, vocabulary(), zeros, origin=("nobody", "zeros"))
    actual = run(
        "import sys, orbax.checkpoint as ocp, mnmt_jax\n"
        "def refuse(*given, **named): raise AssertionError('a manager of checkpoints')\n"
        "ocp.CheckpointManager.__init__ = refuse\n"
        f"translator = mnmt_jax.Translator.load({str(tmp_path / 'run')!r})\n"
        "translator.translate(['eins'], source='de', target='en')\n"
        "print(*sorted({'.'.join(m.split('.')[:2]) for m in sys.modules if m[:8] == 'mnmt_jax'}))\n"
        f"print([m for m in ('optax', 'grain', 'sacrebleu', *{FOREIGN}) if m in sys.modules])"
    )
    rooms, foreign = actual.splitlines()
    assert foreign == "[]"
    assert rooms.split() == sorted(
        ["mnmt_jax", *(f"mnmt_jax.{name}" for name in TRANSLATING.split())]
    )


def test_translator_is_exported():
    assert run("import mnmt_jax; print(mnmt_jax.Translator.__module__)").strip() == (
        "mnmt_jax.decoding.translator"
    )


def test_public_names_are_listed_before_they_are_loaded():
    actual = run(
        "import sys, mnmt_jax\n"
        f"print(*dir(mnmt_jax), not any(m in sys.modules for m in {HEAVY}))\n"
        "print(*(getattr(mnmt_jax, name).__name__ for name in dir(mnmt_jax) if name[0] != '_'))"
    )
    names = "Hypothesis LanguageModel Translation Translator UserError"
    assert actual.splitlines() == [f"{names} __version__ True", names]


def test_help_of_translate_needs_no_numpy():
    script = ROOT / "scripts" / "infer.py"
    program = (
        "import runpy, sys\n"
        "sys.argv = ['infer.py', '--help']\n"
        f"try: runpy.run_path({str(script)!r}, run_name='__main__')\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'jax', 'flax', 'orbax', 'grain', 'tensorflow', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert "--beam_size" in run(program)
