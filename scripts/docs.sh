#!/usr/bin/env bash
# Builds the documentation site into site/, strictly; --serve serves it and rebuilds on changes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment "[docs]"
if [ "${1:-}" = --serve ]; then
    exec "$python" -m mkdocs serve
fi
JAX_PLATFORMS=cpu "$python" -m mkdocs build --strict --quiet
echo "Site: $PWD/site/index.html"
