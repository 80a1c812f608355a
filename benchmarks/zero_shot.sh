#!/usr/bin/env bash
# Trains the published systems and baselines on one corpus with equal data and updates, scores them,
# and prints what docs/results_systems.md shows. Run again, it continues.
#   bash benchmarks/zero_shot.sh DIR [--corpus libreoffice_help] [--seeds 1,2,3] [--cheap]
# --cheap takes one seed and a tenth of the updates: minutes, to see that everything runs.
set -euo pipefail
directory=$(realpath -m "${1:?give a folder}")
shift
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment ""
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
exec "$python" benchmarks/zero_shot.py "$directory" "$@"
