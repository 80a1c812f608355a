"""The name of `mnmt_jax.seqio.vocabulary`, in gin files and modules from before the rooms."""

import sys

from mnmt_jax.seqio import vocabulary

sys.modules[__name__] = vocabulary
