# Sourced by scripts/slurm and scripts/tpu: the one place for flags of the compiler. What you have set
# in XLA_FLAGS or LIBTPU_INIT_ARGS comes after these and wins. docs/distributed.md explains them.

# Lets collectives run beside arithmetic on GPUs: sums of gradients with the layers below.
XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true ${XLA_FLAGS:-}"
# With fsdp, parameters are collected before a product instead of added up part by part (docs/tpu.md).
# The threads of libtpu's compiler overflow their stack on some large models (seen with 0.0.42.1).
LIBTPU_INIT_ARGS="--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000 ${LIBTPU_INIT_ARGS:-}"
LIBTPU_INIT_ARGS="--fibers_default_thread_stack_size=16777216 $LIBTPU_INIT_ARGS"
export XLA_FLAGS LIBTPU_INIT_ARGS
