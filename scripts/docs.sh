#!/usr/bin/env bash
# Build the documentation site into site/ in strict mode. --serve serves it and rebuilds on changes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[docs]"
if [ "${1:-}" = --serve ]; then
    exec "$python" -m mkdocs serve
fi
JAX_PLATFORMS=cpu "$python" -m mkdocs build --strict --quiet
echo "Site: $PWD/site/index.html"
echo "Search needs a server: bash scripts/docs.sh --serve"
