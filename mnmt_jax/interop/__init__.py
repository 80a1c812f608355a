"""Interoperability with other toolkits: checkpoints, adapters, seqio tasks, t5x trainers."""
