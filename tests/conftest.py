"""What every test runs under: 8 virtual CPU devices, strict ranks and dtypes, typed arrays."""

import importlib.util
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest
from jaxtyping import install_import_hook

# PyTorch's builds for GPUs bring Triton, whose LLVM and TensorFlow's end a process that loads both.
sys.modules["triton"] = None

# Tests compile far more than they run: the compiler's least effort makes the suite twice as fast.
# XLA_FLAGS="" runs it as users run. XLA ends the process for a flag that it no longer knows.
_FLAGS = ["--xla_backend_optimization_level=0"]
if jax.__version_info__ < (0, 11):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))

# Array words in signatures (rank, equal sizes, kind of dtype) are checked where functions are pure.
PURE = (
    "mnmt_jax.attention",
    "mnmt_jax.contrastive",
    "mnmt_jax.decoding.search",
    "mnmt_jax.losses",
)
install_import_hook(PURE, "beartype.beartype")

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def relaxed_dtypes():
    """Lets a test use libraries (optax) that mix dtypes on purpose."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def pytest_terminal_summary(terminalreporter):
    """Says in the last lines which tests this environment cannot run: none is skipped silently."""
    if importlib.util.find_spec("t5x") is None:
        terminalreporter.write_line(
            "t5x is not installed: tests/t5x/test_model.py and test_commands.py did not run; its "
            "adapters' own logic was tested (docs/t5x.md)"
        )
    if importlib.util.find_spec("libtpu") is None:
        terminalreporter.write_line(
            "libtpu is not installed: tests/tpu did not run (scripts/test_tpu.sh; docs/tpu.md)"
        )
