#!/usr/bin/env bash
# Install libtpu and the test extras, and run the tests that compile for TPUs without a device.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test,tpu]"
exec .venv/bin/python -m pytest tests/tpu "$@"
