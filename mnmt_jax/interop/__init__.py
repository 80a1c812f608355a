"""Other toolkits: checkpoints and adapters of theirs, seqio tasks, t5x trainers."""
