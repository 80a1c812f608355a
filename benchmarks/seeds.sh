#!/usr/bin/env bash
# Train and evaluate the two models of the quickstart with three seeds, and print the tables of
# docs/results_registers.md. Takes about three times as long as scripts/quickstart.sh. To resume, repeat
# the command.
#   bash benchmarks/seeds.sh DIR
set -euo pipefail
directory=$(realpath -m "${1:?folder of the runs}")
cd "$(dirname "$0")/.."
. scripts/environment.sh
prepare_environment ""
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
[ -e "$directory/cache" ] || "$python" scripts/cache_tasks.py --mixture cldr_quickstart \
    --vocab_size 1500 --no-byte_fallback --output "$directory/cache" > /dev/null
for seed in 1 2 3; do
    for model in prefix register; do
        run=$directory/${model}_$seed
        "$python" scripts/train.py --workdir "$run" \
            --gin_file="gin_configs/models/${model}_tiny.gin" \
            --gin_file="gin_configs/runs/cldr_quickstart.gin" \
            --gin.Data.cache="'$directory/cache'" \
            --gin.Train.steps=3000 --gin.Train.seed="$seed"
        "$python" scripts/evaluate.py --run "$run" --task cldr_quickstart --limit 200 \
            --output "$run/report" --overwrite > /dev/null
    done
done
"$python" benchmarks/seeds.py "$directory"/{prefix,register}_*
