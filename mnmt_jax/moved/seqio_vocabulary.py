"""The name of `mnmt_jax.seqio.vocabulary` in gin files and modules of version 0.1."""

import sys

from mnmt_jax.seqio import vocabulary

sys.modules[__name__] = vocabulary
