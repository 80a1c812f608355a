#!/usr/bin/env bash
# Installs JAX for GPUs beside what scripts/test.sh installs, and compiles for GPUs that are not there.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test,gpu]"
exec .venv/bin/python -m pytest tests/gpu "$@"
