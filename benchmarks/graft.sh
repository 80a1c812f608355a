#!/usr/bin/env bash
# Trains translators on shares of the pairs, grafted on two language models and freshly drawn, scores
# them, and prints what docs/results_graft.md shows. Run again, it continues.
#   bash benchmarks/graft.sh DIR [--corpus libreoffice_help] [--seeds 1,2,3] [--shares 1,10,100] [--cheap]
set -euo pipefail
directory=$(realpath -m "${1:?give a folder}")
shift
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment ""
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
exec "$python" benchmarks/graft.py "$directory" "$@"
