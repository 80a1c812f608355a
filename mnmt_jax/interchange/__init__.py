"""Checkpoints of other toolkits, in and out."""
