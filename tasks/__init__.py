"""Alias of `mnmt_jax.interop.tasks` for use in a checkout: seqio tasks and mixtures."""

from mnmt_jax.interop.tasks import cldr as cldr
from mnmt_jax.interop.tasks import published as published
