"""seqio tasks and mixtures. Importing this room registers all of them (needs TensorFlow)."""

from mnmt_jax.interop.tasks import cldr as cldr
from mnmt_jax.interop.tasks import published as published
