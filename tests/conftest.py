"""Settings of all tests: 8 virtual CPU devices, strict ranks and dtypes, typed arrays."""

import gc
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest
from jaxtyping import install_import_hook

# PyTorch's builds for GPUs bring Triton, whose LLVM and TensorFlow's end a process that loads both.
sys.modules["triton"] = None

# Tests compile far more than they run: the compiler's least effort, one thread at a time, makes the
# suite more than twice as fast. XLA_FLAGS="" runs it as users run. XLA ends the process for a flag
# that it no longer knows. The preset CPU_OPT_PRESET_FAST_COMPILE compiles a quarter faster, but
# jaxlib 0.10.2 computes wrong gradients with it (tests/parity/test_reference.py shows them).
_FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))
if os.environ["XLA_FLAGS"] == " ".join(_FLAGS):
    importlib.import_module("tests.threefry_reduction")

# Tracing makes many objects that stay; the default looks through all of them again and again.
gc.set_threshold(100_000, 10, 10)

# One cache of compiled programs for all processes of the suite: the first makes it, the others
# inherit its name. A folder that you name yourself stays for the next time.
_NAMED = os.environ.get("JAX_COMPILATION_CACHE_DIR")
_CACHE = _NAMED or tempfile.mkdtemp(prefix="mnmt_jax-compiled-")
for _name, _value in (
    ("jax_compilation_cache_dir", _CACHE),
    ("jax_persistent_cache_min_compile_time_secs", 0.5),  # quicker ones cost more to keep
    ("jax_persistent_cache_min_entry_size_bytes", -1),
):
    os.environ[_name.upper()] = str(_value)
    jax.config.update(_name, _value)
importlib.import_module("tests.shared_programs")
importlib.import_module("tests.shared_contexts")

# Array words in signatures (rank, equal sizes, kind of dtype) are checked where functions are pure.
PURE = (
    "mnmt_jax.model.attention",
    "mnmt_jax.decoding.contrastive_decoding",
    "mnmt_jax.decoding.search",
    "mnmt_jax.decoding.search_arrays",
    "mnmt_jax.training.losses",
    "mnmt_jax.methods.instructcl",
)
install_import_hook(PURE, "beartype.beartype")

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="module", autouse=True)
def freed_programs():
    """Free the compiled programs after each test file; those of all files take gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session", autouse=True)
def one_local_device():
    """Translate on one device; compiling for eight virtual ones takes longer than the tests."""
    with pytest.MonkeyPatch.context() as patch:
        one = jax.local_devices()[:1]
        patch.setattr("mnmt_jax.distributed.local.local_devices", lambda: one)
        yield


@pytest.fixture(scope="module")
def one_device():
    """Train on one device, for tests that do not test a mesh."""
    from tests import made_run  # after the hook

    with made_run.one_device():
        yield


@pytest.fixture(scope="module")
def kept_programs():
    """Compile the programs of a configuration once, for files that train it again and again."""
    from tests import made_run  # after the hook

    with made_run.kept_programs():
        yield


@pytest.fixture
def relaxed_dtypes():
    """Allow implicit dtype promotion, which optax relies on."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def pytest_collection_modifyitems(items):
    """Start the test files that take longest first."""
    from tests import longest_first

    longest_first.sort_files(items)


def pytest_collection_finish():
    """Leave the objects of what is imported out of further garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    """Remove the cache of compiled programs of this process."""
    if not _NAMED:
        shutil.rmtree(_CACHE, ignore_errors=True)


def pytest_terminal_summary(terminalreporter):
    """Report which tests this environment cannot run; none is skipped silently."""
    if importlib.util.find_spec("t5x") is None:
        terminalreporter.write_line(
            "t5x is not installed: test_model.py, test_commands.py and test_page.py in tests/t5x "
            "did not run; its adapters' own logic was tested (docs/t5x.md)"
        )
    if importlib.util.find_spec("libtpu") is None:
        terminalreporter.write_line(
            "libtpu is not installed: tests/tpu did not run (scripts/test_tpu.sh; docs/tpu.md)"
        )
    from mnmt_jax.cost.topologies import has_cuda_plugin

    if not has_cuda_plugin():
        terminalreporter.write_line(
            "JAX for GPUs is not there: tests/gpu did not run (scripts/test_gpu.sh; docs/gpu.md)"
        )
    from tests.made_trackers import PACKAGES, is_installed

    if not all(map(is_installed, PACKAGES)):
        terminalreporter.write_line(
            "mlflow or wandb is not installed: tests/unit/test_trackers.py ran with stand-ins "
            "alone (the extras mlflow and wandb)"
        )
    if not all(map(importlib.util.find_spec, ("datasketch", "jieba"))):
        terminalreporter.write_line(
            "datasketch or jieba is not installed: tests/unit/test_preparation_steps.py ran with "
            "stand-ins alone (the extra prepare)"
        )
    if importlib.util.find_spec("apache_beam") is None:
        terminalreporter.write_line(
            "Apache Beam is not installed: tests/beam did not run (scripts/test_beam.sh; "
            "docs/scale.md)"
        )
    if "MNMT_JAX_TEST_METRICS" not in os.environ:
        terminalreporter.write_line(
            "the environment of neural metrics is not named: tests/metrics did not run "
            "(scripts/test_metrics.sh; docs/evaluation.md)"
        )
    if "MNMT_JAX_TABLES" not in os.environ:
        terminalreporter.write_line(
            "tests/tables, a row of each published table, did not run (scripts/test_tables.sh; "
            "docs/reproduce.md)"
        )
    from tests.browser.chromium import find_chromium

    if find_chromium() is None:
        terminalreporter.write_line(
            "Chromium is not installed: tests/browser, the layout of pages, did not run (apt-get "
            "install chromium, or CHROMIUM=/path/to/it)"
        )
