"""The seqio tasks and mixtures of `mnmt_jax.interop.tasks`, by their short name in a checkout."""

from mnmt_jax.interop.tasks import cldr as cldr
from mnmt_jax.interop.tasks import published as published
