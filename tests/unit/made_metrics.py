"""A stand-in for the environment of neural metrics: packages of the same interfaces."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TORCH = """
class cuda:
    @staticmethod
    def is_available():
        return False
"""
_COMET = """
import types

def load_from_checkpoint(path, *, local_files_only):
    assert local_files_only
    print("libraries print")
    if open(path).read() == "crash":
        import os, sys
        print("Killed for memory", file=sys.stderr, flush=True)
        os._exit(3)
    if open(path).read() == "damaged":
        raise ValueError("no\\nzip file")
    return types.SimpleNamespace(predict=predict)

def predict(samples, batch_size, gpus, *, progress_bar):
    assert not progress_bar and gpus == 0
    assert all(list(sample) in (["src", "mt", "ref"], ["src", "mt"]) for sample in samples)
    scores = [float(s["mt"] == s["ref"]) if "ref" in s else 1 / len(s["mt"]) for s in samples]
    return types.SimpleNamespace(scores=scores)
"""
_BERT_SCORE = """
class _Tensor(list):
    def tolist(self):
        return list(self)

class BERTScorer:
    def __init__(self, *, model_type, num_layers, device):
        with open(__file__ + ".log", "a") as file:
            print(model_type, num_layers, device, file=file)

    def score(self, cands, refs, batch_size=64):
        f1 = [1.0 if cand == ref else 0.5 for cand, ref in zip(cands, refs, strict=True)]
        return _Tensor([0.0] * len(f1)), _Tensor([2.0] * len(f1)), _Tensor(f1)
"""
_PACKAGES = {"torch": _TORCH, "comet": _COMET, "bert_score": _BERT_SCORE, "transformers": ""}
_VERSIONS = {"unbabel-comet": "2.2.7", "bert-score": "0.3.13", "transformers": "4.57.6"}


def made_environment(folder: Path) -> Path:
    """Make an environment whose Python is this one with stand-ins for the packages.

    COMET's score is 1 for a hypothesis equal to its reference, else 0; without references it is
    1 / length of the hypothesis. F of BERTScore is 1 or 0.5.
    A checkpoint with the text `crash` ends the process, one with `damaged` raises an error.
    """
    packages, python = folder / "packages", folder / "bin" / "python"
    packages.mkdir(parents=True)
    for name, text in _PACKAGES.items():
        (packages / f"{name}.py").write_text(text)
    for name, version in _VERSIONS.items():
        metadata = packages / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Name: {name}\nVersion: {version}\n")
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return folder


def loaded_bert_models(folder: Path) -> list[list[str]]:
    """Return path, layer and device of the models that BERTScore loaded in an environment."""
    log = folder / "packages" / "bert_score.py.log"
    return [line.split() for line in log.read_text().splitlines()]


def without_package(folder: Path, name: str) -> None:
    """Remove a package of an environment."""
    os.unlink(folder / "packages" / f"{name}.py")
