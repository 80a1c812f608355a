"""The name of `mnmt_jax.t5x.run`, in gin files and modules from before the rooms."""

import sys

from mnmt_jax.t5x import run

sys.modules[__name__] = run
