#!/usr/bin/env bash
# Make the environment of neural metrics in .venv-metrics by `mnmt metrics setup`, and run the tests
# of COMET, xCOMET, CometKiwi, MetricX and BERTScore with tiny random models.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test]"
export MNMT_JAX_TEST_METRICS=$PWD/.venv-metrics
if ! "$python" -m mnmt_jax metrics check --metrics_environment "$MNMT_JAX_TEST_METRICS"; then
    "$python" -m mnmt_jax metrics setup --metrics_environment "$MNMT_JAX_TEST_METRICS"
fi
exec "$python" -m pytest tests/metrics "$@"
