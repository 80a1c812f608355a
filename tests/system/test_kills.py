"""Thirty kill -9 at random moments of a run that always saves: they change nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path

from mnmt_jax.config.loading import save_config
from tests.fresh_process import PATIENCE
from tests.made_run import assert_same_training, make_cache, make_config
from tests.system.test_resume import complete, finish, start, unfinished

KILLS = 30
STEPS = 150
LONGEST = 0.4  # seconds that a start trains before it is killed


def saved(run: Path) -> int:
    """Returns the step of the newest complete checkpoint; 0 without."""
    return max(complete(run), default=0)


def test_thirty_kills_change_nothing(tmp_path):
    config = make_config(
        make_cache(tmp_path / "cache"),
        train={"steps": STEPS, "log_every": 7, "eval_every": 50, "save_every": 1},
    )
    gin_file = tmp_path / "run.gin"
    save_config(config, gin_file)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    finish(start(gin_file, straight, f"--gin.Train.save_every={STEPS}"), 0)
    draw = random.Random(0)
    in_a_save, reached = 0, [0]
    for _ in range(KILLS):
        child = start(gin_file, broken)
        deadline = time.monotonic() + PATIENCE
        while saved(broken) == reached[-1] and time.monotonic() < deadline:
            assert child.poll() is None, child.said()
            time.sleep(0.002)
        time.sleep(draw.uniform(0, LONGEST))
        child.kill()
        child.wait()
        done = saved(broken)
        assert reached[-1] <= done < STEPS  # what was saved stays, and there is more to do
        in_a_save += bool(unfinished(broken, done))
        reached.append(done)
    assert len(set(reached)) > KILLS / 2 and in_a_save > 3, (reached, in_a_save)
    finish(start(gin_file, broken), 0)
    assert_same_training(broken, straight, STEPS)
    print(f"{KILLS} kills, {in_a_save} inside a save, after the steps {reached[1:]}")
