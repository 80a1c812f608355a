"""The name of `mnmt_jax.t5x.errors`, in gin files and modules from before the rooms."""

import sys

from mnmt_jax.t5x import errors

sys.modules[__name__] = errors
