#!/usr/bin/env bash
# Run one row of each published table end to end with tiny models on made text (docs/reproduce.md).
# MNMT_JAX_TABLES names the output folder; finished steps in it are not repeated.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test]"
export MNMT_JAX_TABLES="${MNMT_JAX_TABLES:-runs/tiny_tables}"
exec .venv/bin/python -m pytest tests/tables "$@"
