#!/usr/bin/env bash
# Train translators on shares of the sentence pairs, grafted on two language models or with random
# initialization, evaluate them and print the tables of docs/results_graft.md. To resume, repeat the
# command.
#   bash benchmarks/graft.sh DIR [--corpus libreoffice_help] [--seeds 1,2,3] [--shares 1,10,100] [--cheap]
set -euo pipefail
directory=$(realpath -m "${1:?folder of the runs}")
shift
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment ""
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
exec "$python" benchmarks/graft.py "$directory" "$@"
