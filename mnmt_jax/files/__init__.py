"""File access: atomic writes, buckets, JSON, and classification of storage errors."""
