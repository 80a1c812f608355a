"""Declared and scheduled cycles of the attention kernels, compiled for a v5e.

    LIBTPU_INIT_ARGS="--xla_jf_dump_to=DIR --xla_jf_dump_llo_text=true" \
        python -m tests.tpu.schedule DIR LENGTH SEES KEYS [KEYS ...]
"""

import json
import re
import sys
from pathlib import Path

from mnmt_jax.cost.topologies import topology_devices

ROWS, HEADS, HEAD_DIM = 3, 4, 64


def main(folder: str, length: int, sees: str, keys: list[int]) -> None:
    """Print the declared cycles and the scheduled bundles of each kernel."""
    device = topology_devices("v5e:2x2")[0]
    import jax

    from mnmt_jax.model.attention.kernel_parts import KernelSettings
    from mnmt_jax.model.attention.tpu_kernel import attend

    def shape(*sizes: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
        placed = jax.sharding.SingleDeviceSharding(device)
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=placed)

    def both(numbers, queries, query_ids, keys, values, key_ids, outward):
        def read(*states):
            return attend(settings, numbers, states, (query_ids, key_ids))

        actual, back = jax.vjp(read, queries, keys, values)
        return actual, back(outward)

    settings = KernelSettings(sees, HEADS, 0.9)
    queries = shape(ROWS, length, HEADS, HEAD_DIM)
    spans = tuple(shape(ROWS, each, HEADS, HEAD_DIM) for each in keys)
    ids = tuple(shape(ROWS, each, dtype="int32") for each in (length, *keys))
    numbers = shape(4, dtype="int32")
    lowered = jax.jit(both).lower(numbers, queries, ids[0], spans, spans, ids[1:], queries)
    text = lowered.compile().as_text()
    actual = {}
    for name in ("attention_forward", "attention_backward"):
        stated = re.search(rf'{name}.*?"core_cycles":"(\d+)"', text, re.DOTALL)
        (path,) = Path(folder).glob(f"*{name}*schedule-analysis_final_bundles.txt")
        bundles = re.search(r"total scheduled bundles:\s+(\d+)", path.read_text())
        actual[name] = {"stated": int(stated[1]) * 2 // (ROWS * HEADS), "bundles": int(bundles[1])}
    print(json.dumps(actual))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], [int(each) for each in sys.argv[4:]])
