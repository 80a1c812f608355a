#!/usr/bin/env bash
# Trains two small models of equal size on the embedded corpus, compares their zero-shot translation,
# and leaves DIR/report/report.html. Run again after an interruption, it continues.
#   bash scripts/quickstart.sh [DIR]      (default: runs/quickstart)
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
directory=${1:-runs/quickstart}
case $directory in -*)
    echo "error: $directory: is no folder; usage: bash scripts/quickstart.sh [DIR]" >&2
    exit 2 ;;
esac
if [ $# -gt 0 ] && [ "${directory#/}" = "$directory" ]; then directory=$here/$directory; fi
. scripts/environment.sh
prepare_environment ""
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}  # two small models: a CPU is enough
started=$SECONDS

cache=$directory/cache
if [ ! -e "$cache" ]; then
    "$python" scripts/cache_tasks.py --mixture cldr_quickstart --vocab_size 1500 --output "$cache" \
        > /dev/null
fi

models=(prefix register)
for model in "${models[@]}"; do
    echo "== $model: training" >&2
    "$python" scripts/train.py --workdir "$directory/$model" \
        --gin_file="gin_configs/models/${model}_tiny.gin" \
        --gin_file="gin_configs/runs/cldr_quickstart.gin" \
        --gin.Data.cache="'$cache'"
    echo "== $model: translating and scoring" >&2
    "$python" scripts/evaluate.py --run "$directory/$model" --task cldr_quickstart --limit 200 \
        --output "$directory/$model/report" --overwrite > /dev/null
done

"$python" scripts/compare.py "$directory/prefix/report" "$directory/register/report" \
    --output "$directory/report/report.html"
cat << TEXT

Both models saw English paired with German, French and Czech, and nothing else. The register model
learns the trained directions more slowly, since the source reaches the target only through the
registers; before about 600 updates it looks worse. docs/results_registers.md says what three seeds show.
Report: $directory/report/report.html   ($((SECONDS - started)) seconds)
TEXT
