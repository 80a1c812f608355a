# Compiler flags, sourced by scripts/slurm and scripts/tpu. Your own XLA_FLAGS and LIBTPU_INIT_ARGS are
# appended and take precedence. docs/distributed.md explains the flags.

# Overlap collectives with computation on GPUs: gradient sums with the backward pass of lower layers.
XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true ${XLA_FLAGS:-}"
# With fsdp, gather parameters before a matmul instead of a windowed einsum (docs/tpu.md). The second
# flag prevents stack overflows in libtpu's compiler on some large models (seen with 0.0.42.1).
LIBTPU_INIT_ARGS="--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000 ${LIBTPU_INIT_ARGS:-}"
LIBTPU_INIT_ARGS="--fibers_default_thread_stack_size=16777216 $LIBTPU_INIT_ARGS"
export XLA_FLAGS LIBTPU_INIT_ARGS
