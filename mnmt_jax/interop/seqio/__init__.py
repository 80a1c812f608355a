"""Our corpora as tasks of seqio, and any task of seqio as a corpus. Needs TensorFlow."""
