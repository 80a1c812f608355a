"""Two language models and their graft, each killed (SIGKILL) at a random moment and continued."""

from __future__ import annotations

import dataclasses
import random
import shutil
import time

import pytest

from mnmt_jax.config.loading import save_config
from mnmt_jax.config.sections import Model
from mnmt_jax.data.cache_writer import TaskSource, write_cache
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.training.source_runs import SourceRunSpec
from mnmt_jax.training.train import train
from tests.made_run import assert_same_training, make_cache, make_config, one_device, random_pairs
from tests.system.test_kills import saved
from tests.system.test_resume import finish, start, wait_for
from tests.unit import made_text

STEPS = 24
LONGEST = 0.2  # seconds between the first checkpoint and the end
STAGES = {
    "mlm": Model("masked_lm", (1,)),
    "lm": Model("causal_lm", (1,)),
    "graft": Model("grafted", (2, 1, 1), methods=(Graformer(encoder_layers=1),)),
}


def text_cache(folder):
    def task(seed: int, language: str) -> TaskSource:
        def lines():
            return (([], target) for _, target in random_pairs(60, seed))

        return TaskSource(f"text_{language}", language, language, {"train": lines})

    tasks = [task(number, language) for number, language in enumerate(("en", "de", "fr"))]
    write_cache(folder, tasks, vocabulary=made_text.vocabulary())
    return folder


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """The three runs without a stop, each with its configuration and what it began with."""
    root = tmp_path_factory.mktemp("stages")
    caches = {"graft": make_cache(root / "pairs")} | dict.fromkeys(
        ("mlm", "lm"), text_cache(root / "text")
    )
    made = {}
    for name, model in STAGES.items():
        config = make_config(
            caches[name],
            model={"layout": model.layout, "methods": model.methods}
            | {"stage_layers": model.stage_layers, "positions": ("learned", 16), "norm": "pre"},
            data={"instruction": "3"},
            train={"steps": STEPS, "log_every": 7, "eval_every": STEPS, "save_every": 1},
        )
        given = [(other, root / other) for other in ("mlm", "lm")] if name == "graft" else []
        straight = dataclasses.replace(config.train, save_every=STEPS)
        with one_device():
            train(
                dataclasses.replace(config, train=straight),
                root / name,
                [SourceRunSpec(folder, name=origin) for origin, folder in given],
            )
        made[name] = root / name, config, given
    return made


@pytest.mark.parametrize("name", STAGES)
def test_a_kill_changes_nothing(name, stages, tmp_path):
    """What a graft takes is taken once: the second time its two models are not there."""
    straight, config, given = stages[name]
    given = [(other, shutil.copytree(folder, tmp_path / other)) for other, folder in given]
    gin_file, broken = tmp_path / "run.gin", tmp_path / "broken"
    save_config(config, gin_file)
    flags = [f"--initialize_from={other}={folder}" for other, folder in given]
    child = start(gin_file, broken, *flags)
    wait_for(lambda: saved(broken), child)
    time.sleep(random.Random(name).uniform(0, LONGEST))
    child.kill()
    child.wait()
    assert 0 < saved(broken) < STEPS
    for _, folder in given:
        shutil.rmtree(folder)
    finish(start(gin_file, broken, *flags), 0)
    assert_same_training(broken, straight, STEPS)
