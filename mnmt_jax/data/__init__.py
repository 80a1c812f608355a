"""Text corpora, token caches and batches."""
