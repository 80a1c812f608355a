#!/usr/bin/env bash
# Installs libtpu beside what scripts/test.sh installs, and compiles for TPUs that are not there.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test,tpu]"
exec .venv/bin/python -m pytest tests/tpu "$@"
