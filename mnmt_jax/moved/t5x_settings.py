"""The name of `mnmt_jax.t5x.settings`, in gin files and modules from before the rooms."""

import sys

from mnmt_jax.t5x import settings

sys.modules[__name__] = settings
