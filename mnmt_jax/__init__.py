"""Multilingual neural machine translation in JAX."""
