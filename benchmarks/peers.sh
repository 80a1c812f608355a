#!/usr/bin/env bash
# Decoding on a CPU core against Hugging Face's and CTranslate2's of the same weights: seconds,
# memory, translations. Run again, it takes the models that are there.
#   bash benchmarks/peers.sh DIR [--models trained,random] [--engines ours,...] [--rounds 3] [--lines 64]
set -euo pipefail
directory=$(realpath -m "${1:?give a folder}")
shift
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test]"
export JAX_PLATFORMS=cpu
exec "$python" benchmarks/peers.py "$directory" "$@"
