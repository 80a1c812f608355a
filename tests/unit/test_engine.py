"""Snakemake as the engine of tables: executors, failures and finished steps in one line."""

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.papers.engine import check_executor, check_finished, run_steps
from mnmt_jax.papers.steps import Step


@pytest.mark.parametrize(
    "arguments", [["--executor", "no-such"], ["--jobs=2", "--executor=no-such"]]
)
def test_a_missing_executor_is_named_with_its_package(arguments):
    with pytest.raises(UserError, match="pip install snakemake-executor-plugin-no-such$"):
        check_executor(arguments)


@pytest.mark.parametrize("arguments", [[], ["--executor", "local"], ["--executor=slurm"]])
def test_executors_that_are_there_pass(arguments):
    check_executor(arguments)


def test_a_step_that_was_done_by_another_command_is_refused(tmp_path):
    done = tmp_path / "done/train/a/seed1"
    done.parent.mkdir(parents=True)
    done.write_text("mnmt train --input /there/model.bin --gin.Data.rows=8\n", encoding="utf-8")
    command = ("mnmt", "train", "--input", "/here/model.bin", "--gin.Data.rows=16")
    with pytest.raises(UserError) as refused:
        run_steps(
            [Step("train/a/seed1", command)],
            ["train/a/seed1"],
            name="plan",
            output=tmp_path,
            data=tmp_path,
            cores=1,
        )
    assert str(refused.value) == (
        f"{done}: this step was done with `--gin.Data.rows=8`, and now has "
        "`--gin.Data.rows=16`; choose another --output, or remove this file and what the step "
        "made; if that makes no difference, empty this file: only the steps after it are repeated"
    )
    done.write_text("mnmt 'train", encoding="utf-8")
    with pytest.raises(UserError, match=f"^{done}: damaged .No closing quotation.; choose another"):
        check_finished([Step("train/a/seed1", command)], tmp_path)
