"""t5x's commands in separate processes, with other models than those of docs/t5x.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mnmt_jax import Translator

pytest.importorskip("t5x", reason="t5x is not installed (docs/t5x.md)")

ROOT = Path(__file__).parent.parent.parent
BINDINGS = {
    "MIXTURE_OR_TASK_MODULE": "'tests.t5x.made_tasks'",
    "Model.embed": 16,
    "Model.mlp": 24,
    "Model.heads": 2,
    "Data.rows": 4,
    "Data.source_length": 32,
    "Data.target_length": 32,
    "Data.validation_examples": 4,
    "Optimizer.warmup_steps": 2,
    "Train.steps": 4,
    "Train.log_every": 2,
    "Train.eval_every": 2,
    "Train.save_every": 2,
    "Decode.beam_size": 2,
    "Decode.max_length": 8,
    "Decode.buckets": "(16,)",
    "Decode.batch": 4,
}


def run(*command: str, text: str | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *command],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def t5x(mode: str, model: str, settings: Mapping[str, object] = {}, **bindings: str) -> None:
    values = BINDINGS | settings | {name: f"'{value}'" for name, value in bindings.items()}
    files = [f"t5x/{mode}", f"models/{model}", "runs/own_text"]
    run(
        *("-m", "t5x.main", f"--run_mode={mode}"),
        *(f"--gin_file=gin_configs/{name}.gin" for name in files),
        *(f"--gin.{name}={value}" for name, value in values.items()),
    )


def test_train_eval_infer_and_conversion_back(tmp_path):
    model = "two_stage_tiny"
    t5x("train", model, MIXTURE_OR_TASK_NAME="t5x_made", MODEL_DIR=str(tmp_path / "model"))
    checkpoint = str(tmp_path / "model" / "checkpoint_4")
    task = {"MIXTURE_OR_TASK_NAME": "t5x_made_de_en", "CHECKPOINT_PATH": checkpoint}
    t5x("eval", model, **task, EVAL_OUTPUT_DIR=str(tmp_path / "eval"))
    [scores] = (tmp_path / "eval").rglob("*metrics.jsonl")
    assert {"bleu", "chrf", "exact_match"} <= json.loads(scores.read_text()).keys()
    t5x("infer", model, **task, INFER_OUTPUT_DIR=str(tmp_path / "infer"))
    actual = predictions(tmp_path / "infer")
    assert len(actual) == 9 and any(actual.values())
    command = ["--format=t5x", "--input", str(tmp_path / "model"), "--output"]
    run("scripts/import_checkpoint.py", *command, str(tmp_path / "run"))
    lines = "\n".join(actual) + "\n"
    flags = [f"--run={tmp_path / 'run'}", "--source=de", "--target=en"]
    ours = run("scripts/infer.py", *flags, text=lines).split("\n")[:-1]
    assert ours == list(actual.values())
    back = ["--format=t5x", "--run", str(tmp_path / "run"), "--output", str(tmp_path / "back")]
    run("scripts/export_checkpoint.py", *back)
    task["CHECKPOINT_PATH"] = str(tmp_path / "back" / "checkpoint_0")
    t5x("infer", model, **task, INFER_OUTPUT_DIR=str(tmp_path / "again"))
    assert predictions(tmp_path / "again") == actual


def test_a_contrastive_run_trains_and_scores(tmp_path):
    folder = tmp_path / "model"
    term = {"Train.methods": ("instructcl",), "InstruCL.layer": 1}
    t5x("train", "register_tiny", term, MIXTURE_OR_TASK_NAME="t5x_made", MODEL_DIR=str(folder))
    [events] = (folder / "train").glob("events.*")
    assert b"contrastive" in events.read_bytes()
    task = {"MIXTURE_OR_TASK_NAME": "t5x_made_de_en", "CHECKPOINT_PATH": f"{folder}/checkpoint_4"}
    scores = tmp_path / "scores"
    t5x("infer", "register_tiny", MODE="score", **task, INFER_OUTPUT_DIR=str(scores))
    [file] = scores.glob("*-score.jsonl-00000-of-00001")
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    command = ["--format=t5x", "--input", str(folder), "--output", str(tmp_path / "run")]
    run("scripts/import_checkpoint.py", *command)
    lines, references = (
        [record["inputs"][f"{side}_pretokenized"] for record in records]
        for side in ("inputs", "targets")
    )
    translator = Translator.load(tmp_path / "run", bindings=["Decode.length_penalty=0.0"])
    expected = translator.score(lines, references, source="de", target="en")
    assert len(records) == 9
    np.testing.assert_allclose([record["score"] for record in records], expected, atol=1e-3)


def predictions(folder: Path) -> dict[str, str]:
    [file] = folder.glob("*-predict.jsonl-00000-of-00001")
    records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {r["inputs"]["inputs_pretokenized"]: r["prediction"] for r in records}
