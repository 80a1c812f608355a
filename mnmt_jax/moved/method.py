"""The name of `mnmt_jax.config.method` before the rooms."""

import sys

from mnmt_jax.config import method

sys.modules[__name__] = method
