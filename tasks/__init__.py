"""The seqio tasks and mixtures of `mnmt_jax.tasks`, by their short name in a checkout."""

from mnmt_jax.tasks import cldr as cldr
from mnmt_jax.tasks import published as published
