"""Adapters between this project's corpora and seqio tasks. Needs TensorFlow."""
