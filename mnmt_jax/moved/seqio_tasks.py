"""The name of `mnmt_jax.seqio.tasks`, in gin files and modules from before the rooms."""

import sys

from mnmt_jax.seqio import tasks

sys.modules[__name__] = tasks
