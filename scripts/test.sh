#!/usr/bin/env bash
# Run format, lint, type and spelling checks and the full test suite. Arguments go to pytest.
#   bash scripts/test.sh --quick    the same checks, and the tests closest to the last change
#                                   (scripts/choose_tests.py), within two minutes
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test]"
bin=.venv/bin
# Without cached bytecode every process compiles its imports again, and pytest every test file.
unset PYTHONDONTWRITEBYTECODE
# XLA's compiler allocates all the time: with jemalloc, if it is installed, it takes less.
allocator=$({ ldconfig -p || /sbin/ldconfig -p; } 2> /dev/null |
    awk '$1 == "libjemalloc.so.2" {print $NF; exit}') || true
preload=$allocator${allocator:+${LD_PRELOAD:+:}}${LD_PRELOAD:-}
# Programs that the tests compile stay for the next run, for three days. A program is for the
# instructions of this processor.
if [ -z "${JAX_COMPILATION_CACHE_DIR:-}" ]; then
    processor=$({ grep -m1 -E '^(flags|Features)' /proc/cpuinfo || uname -m; } 2> /dev/null | cksum)
    export JAX_COMPILATION_CACHE_DIR=$PWD/.venv/compiled-${processor%% *}
    mkdir -p "$JAX_COMPILATION_CACHE_DIR"
    find "$JAX_COMPILATION_CACHE_DIR" -type f -mtime +3 -delete
fi
code=(mnmt_jax tasks scripts tests benchmarks)
$bin/ruff format --check "${code[@]}"
$bin/ruff check "${code[@]}"
# Without tests/, which has text in many languages.
$bin/codespell mnmt_jax tasks scripts benchmarks docs gin_configs README.md CHANGELOG.md CONTRIBUTING.md
if [ "${1:-}" = --quick ]; then
    shift
    $bin/mypy
    chosen=$($bin/python scripts/choose_tests.py)
    if [ -z "$chosen" ]; then exit 0; fi
    mapfile -t files <<< "$chosen"
    LD_PRELOAD=$preload exec $bin/python -m pytest --numprocesses 2 --dist loadfile "${files[@]}" "$@"
fi
# Beside the tests: alone, its minute on one core would leave the others idle.
$bin/mypy &
types=$!
status=0
# One process more than cores, because some tests wait for commands that they start; at most four,
# because each takes up to 3 GB.
cores=$(getconf _NPROCESSORS_ONLN)
processes=$((cores < 4 ? cores + 1 : 4))
# In the order of tests/longest_first.py: test files that take long must not start last.
LD_PRELOAD=$preload $bin/python -m pytest --numprocesses "$processes" --dist loadfile \
    --no-loadscope-reorder "$@" || status=$?
wait "$types" || { echo "error: mypy failed; its errors are above" >&2 && status=1; }
exit "$status"
