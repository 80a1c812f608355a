"""The name of `mnmt_jax.t5x.model` in gin files and modules of version 0.1."""

import sys

from mnmt_jax.t5x import model

sys.modules[__name__] = model
