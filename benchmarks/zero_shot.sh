#!/usr/bin/env bash
# Train the published systems and baselines on one corpus with equal data and updates, evaluate them
# and print the table of docs/results_systems.md. To resume, repeat the command.
#   bash benchmarks/zero_shot.sh DIR [--corpus libreoffice_help] [--seeds 1,2,3] [--cheap]
# --cheap has one seed and a tenth of the updates, to check within minutes that everything runs.
set -euo pipefail
directory=$(realpath -m "${1:?folder of the runs}")
shift
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment ""
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
exec "$python" benchmarks/zero_shot.py "$directory" "$@"
