"""Data preparation: cleaning steps, recipes, and their application to corpora of any size."""
