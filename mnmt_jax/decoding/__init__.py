"""Decoding: search over a step function, scoring, and text in, text out."""
