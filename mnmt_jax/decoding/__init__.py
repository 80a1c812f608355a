"""Decoding: search over a step function, scoring, and translation of text."""
