"""seqio tasks and mixtures; importing the package registers them (needs TensorFlow)."""

from mnmt_jax.interop.tasks import cldr as cldr
from mnmt_jax.interop.tasks import published as published
