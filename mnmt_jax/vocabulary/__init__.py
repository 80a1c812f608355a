"""Vocabularies: languages, pieces and tags, their training, fixed ids, seeded orders."""
