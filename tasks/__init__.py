"""seqio tasks and mixtures. Importing this package registers all of them (needs TensorFlow)."""

from tasks import cldr as cldr
from tasks import published as published
