#!/usr/bin/env bash
# Measure what docs/gpu.md reports of one GPU, the most valuable part first. Each part takes a few
# minutes and writes OUT/PART.json, OUT/PART.md and OUT/PART.log; a part that fails does not stop the
# next. It installs nothing and needs no network and no TensorFlow; on_gpu_requirements.txt lists the
# small packages that it needs beside jax, torch and transformers.
#   bash benchmarks/on_gpu.sh [OUT [PART...]]     (default: runs/gpu and all parts but multi30k)
# REHEARSE=1 runs small sizes on the CPU, to check the programs; PYTHON names the interpreter.
set -uo pipefail
here=$PWD
cd "$(dirname "$0")/.."
out=${1:-runs/gpu}
if [ "${out#/}" = "$out" ]; then out=$here/$out; fi
shift || true
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(kernels training_466m quickstart decoding training_913m blocks)
python=${PYTHON:-python3}
rehearse=${REHEARSE:-}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
# XLA tries dozens of Triton programs for each matrix product, which takes minutes; cuBLAS has them.
export XLA_FLAGS=${XLA_FLAGS:---xla_gpu_enable_triton_gemm=false}
for part in "${parts[@]}"; do
    case $part in
        kernels | training_466m | quickstart | decoding | training_913m | blocks | multi30k) ;;
        *) echo "error: $part: no such part; see the head of benchmarks/on_gpu.sh" >&2; exit 2 ;;
    esac
done
mkdir -p "$out"

kernels() {
    "$python" benchmarks/gpu_kernels.py --parts=exactness,speed ${rehearse:+--interpret} \
        --output="$out/kernels.json"
}

blocks() {
    "$python" benchmarks/gpu_kernels.py --parts=tiles ${rehearse:+--interpret} \
        --output="$out/blocks.json"
}

training_466m() {
    training 466m "transformers,ours,ours fused,ours fused kept,ours prefix fused"
}

training_913m() {
    training 913m "transformers,ours,ours fused"
}

training() {
    local size=$1 engines=$2
    local flags=(--device=gpu --size="$size" --engines="$engines")
    if [ -n "$rehearse" ]; then flags=(--size=tiny --engines=ours,"ours fused" --pairs=400); fi
    "$python" benchmarks/peers_training.py "${flags[@]}" --rounds=3 --output="$out/training_$size.json"
}

decoding() {
    local flags=(--device=gpu --models=big --lines=256)
    if [ -n "$rehearse" ]; then flags=(--models=random --lines=8 --steps=4); fi
    local failed=0 # smaller batches are measured even if a larger one does not fit
    for batch in 256 32 1; do
        if [ "$batch" = 1 ]; then flags+=(--lines=8); fi
        echo "batches of $batch:"
        "$python" benchmarks/peers.py "$out/models" "${flags[@]}" --batch=$batch --rounds=2 \
            --engines="transformers,ours bfloat16" --output="$out/decoding_$batch.json" ||
            failed=1
    done
    local size=(--embed=1024 --head_dim=64 --layers=24 --vocab=160025 --steps=32)
    if [ -n "$rehearse" ]; then size=(--embed=64 --layers=2 --vocab=100 --steps=4); fi
    for batch in 256 32 4; do
        "$python" benchmarks/decoding.py --layout=register "${size[@]}" --source_length=32 \
            --max_length=64 --batch=$batch --beams 1 5 --weights=bfloat16 --seconds=1 --kinds fitting \
            | tee "$out/decoding_register_$batch.json" || failed=1
    done
    return "$failed"
}

# Needs Multi30k's files (docs/results_claims.md). Small models leave most of a GPU idle, so several
# are trained at once; where nvidia-cuda-mps-control runs, their kernels overlap too.
multi30k() {
    local flags=(--workers "${WORKERS:-8}" --results "$out/results") platforms=cuda,cpu
    if [ -n "$rehearse" ]; then flags=(--trial --seeds=1 --arms=prefix) platforms=cpu; fi
    JAX_PLATFORMS=$platforms XLA_PYTHON_CLIENT_PREALLOCATE=false \
        "$python" benchmarks/claims.py multi30k "$out/claims" "${flags[@]}"
}

quickstart() {
    local run=$out/quickstart steps=()
    if [ -n "$rehearse" ]; then steps=(--gin.Train.steps=120 --gin.Train.{eval,save}_every=60); fi
    [ -e "$run/cache" ] || "$python" scripts/cache_tasks.py --mixture=cldr_quickstart \
        --vocab_size=1500 --output="$run/cache" > "$out/quickstart_cache.txt" || return 1
    for model in prefix register; do
        local start=$SECONDS
        "$python" scripts/train.py --workdir="$run/$model" "${steps[@]}" \
            --gin_file="gin_configs/models/${model}_tiny.gin" \
            --gin_file=gin_configs/runs/cldr_quickstart.gin --gin.Data.cache="'$run/cache'" \
            || return 1
        local trained=$SECONDS
        "$python" scripts/evaluate.py --run="$run/$model" --task=cldr_quickstart --limit=200 \
            --output="$run/$model/report" --overwrite > "$out/quickstart_$model.md" || return 1
        echo "$model: $((trained - start)) s of training, $((SECONDS - trained)) s of evaluation"
    done
}

status=0
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null
for part in "${parts[@]}"; do
    started=$SECONDS
    if "$part" > "$out/$part.md" 2> "$out/$part.log"; then result=done; else result=failed status=1; fi
    echo "== $part: $result, $((SECONDS - started)) s"
    cat "$out/$part.md"
    if [ "$result" = failed ]; then tail -n 15 "$out/$part.log"; fi
done
exit $status
