"""The name of `mnmt_jax.t5x.model`, in gin files and modules from before the rooms."""

import sys

from mnmt_jax.t5x import model

sys.modules[__name__] = model
