"""Evaluation: scores, off-target ratios, averages over directions, and the report."""
