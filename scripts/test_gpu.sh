#!/usr/bin/env bash
# Install JAX for GPUs and the test extras, and run the tests that compile for GPUs without a device.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test,gpu]"
exec .venv/bin/python -m pytest tests/gpu "$@"
