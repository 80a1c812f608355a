#!/usr/bin/env bash
# Compare decoding on one CPU core with Hugging Face and CTranslate2 on the same weights: seconds,
# memory, translations. Existing models are reused.
#   bash benchmarks/peers.sh DIR [--models trained,random] [--engines ours,...] [--rounds 3] [--lines 64]
set -euo pipefail
directory=$(realpath -m "${1:?folder of the models}")
shift
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[test]"
export JAX_PLATFORMS=cpu
exec "$python" benchmarks/peers.py "$directory" "$@"
