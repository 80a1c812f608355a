"""Snakemake as the engine of tables: executors and failures in one line."""

import pytest

from mnmt_jax.errors import UserError
from mnmt_jax.papers.engine import check_executor


@pytest.mark.parametrize(
    "arguments", [["--executor", "no-such"], ["--jobs=2", "--executor=no-such"]]
)
def test_a_missing_executor_is_named_with_its_package(arguments):
    with pytest.raises(UserError, match="pip install snakemake-executor-plugin-no-such$"):
        check_executor(arguments)


@pytest.mark.parametrize("arguments", [[], ["--executor", "local"], ["--executor=slurm"]])
def test_executors_that_are_there_pass(arguments):
    check_executor(arguments)
