"""The name of `mnmt_jax.t5x.settings` in gin files and modules of version 0.1."""

import sys

from mnmt_jax.t5x import settings

sys.modules[__name__] = settings
