"""Vocabularies: languages, pieces and tags, training, special ids, seeded permutations."""
