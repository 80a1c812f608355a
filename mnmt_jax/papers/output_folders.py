"""Folders of caches, imported models and runs, below the output folder of a workflow."""

from __future__ import annotations

from mnmt_jax.papers.experiments import Experiment


def cache_folder(experiment: Experiment) -> str:
    """Return the folder of a training's cache; the same mixture, flags and vocabulary share it."""
    data = experiment.data
    vocabulary = experiment.vocabulary_import or data.vocabulary_name
    difference = "" if vocabulary == data.mixture else vocabulary.removeprefix(f"{data.mixture}-")
    prepared = data.recipe if data.is_prepared else ""
    parts = (*data.cache, *filter(None, [difference, prepared]))
    return "-".join([f"caches/{data.mixture}", *(part.lstrip("-") for part in parts)])


def import_folder(name: str) -> str:
    """Return the folder of an imported model, by its name in `paper.toml`."""
    return f"imports/{name}"


def run_folder(experiment: Experiment, seed: int) -> str:
    """Return the folder of a run, which is that of the last round of back-translation if any."""
    if experiment.pretrained:
        return import_folder(experiment.model)
    folder = f"runs/{experiment.run_name}/seed{seed}"
    rounds = experiment.back_translation_rounds
    return f"{folder}/round_{rounds}/run" if rounds else folder


def count_file(mixture: str, suffix: str = "json") -> str:
    """Return the file of the counts of a mixture, or their page, below the output folder."""
    return f"counts/{mixture}.{suffix}"
