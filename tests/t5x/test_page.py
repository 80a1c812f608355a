"""The commands of docs/t5x.md as written: train, eval, infer, to our commands and back."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("t5x", reason="t5x is not installed (docs/t5x.md)")

import seqio

from mnmt_jax.interop.t5x_checkpoint import open_t5x
from mnmt_jax.model.lora import split_lora
from mnmt_jax.runs.parameters import load_params
from tests.documents import commands, make_root, run_page, shell
from tests.t5x import made_tasks
from tests.t5x.made_cache import write_cache

PAGE = "docs/t5x.md"
LORA = " --gin.Model.lora_rank=8"
TASK = made_tasks.NAMES[1]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Return the folder in which the page's commands ran, with relative paths as in the page."""
    root = make_root(tmp_path_factory.mktemp("t5x"))
    task = seqio.get_mixture_or_task(TASK)
    examples = {
        split: list(task.get_dataset(None, split, shuffle=False).as_numpy_iterator())
        for split in ("train", "validation")
    }
    write_cache(root / "SEQIO_CACHE" / TASK, examples)
    run_page("docs/t5x.md", root)
    return root


def params(folder: Path) -> dict:
    return jax.tree.map(lambda leaf: leaf.read(), open_t5x(folder)[2])


def test_the_commands_train_evaluate_and_translate(root):
    for run in ("register", "cached", "lora"):
        assert (root / "runs/t5x" / run / "checkpoint_2" / "state").is_dir()
    [scores] = (root / "runs/t5x/eval").rglob("*metrics.jsonl")
    assert {"bleu", "chrf", "exact_match"} <= json.loads(scores.read_text()).keys()
    [file] = (root / "runs/t5x/infer").glob("*-predict.jsonl-00000-of-00001")
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(records) == 9 and any(record["prediction"] for record in records)
    lines = [record["inputs"]["inputs_pretokenized"] for record in records]
    (root / "lines.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
    ours = shell(
        root, "python scripts/infer.py --run=RUN --source=de --target=en < lines.de"
    ).stdout
    assert ours.split("\n")[:-1] == [record["prediction"] for record in records]


def test_parameters_are_converted_in_both_directions(root):
    actual, _ = load_params(root / "RUN")
    for other in (params(root / "runs/t5x/register"), params(root / "DIR")):
        jax.tree.map(np.testing.assert_array_equal, other, actual)


@pytest.mark.parametrize("with_lora", [True, False])
def test_training_starts_from_converted_parameters(root, with_lora):
    """With LoRA as the page's command ran; without it, LoRA's pattern would match nothing."""
    if not with_lora:
        [start] = (one.text for one in commands(PAGE) if "start_from.gin" in one.text)
        assert LORA in start
        shell(root, start.replace(LORA, "").replace("runs/t5x/lora", "runs/t5x/plain"))
    first = params(root / "runs/t5x" / ("lora" if with_lora else "plain") / "checkpoint_0")
    own, rest = split_lora(first)
    assert bool(own) == with_lora
    jax.tree.map(np.testing.assert_array_equal, rest, params(root / "DIR"))
