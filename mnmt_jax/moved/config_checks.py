"""The name of `mnmt_jax.config.fields` before the rooms."""

import sys

from mnmt_jax.config import fields

sys.modules[__name__] = fields
