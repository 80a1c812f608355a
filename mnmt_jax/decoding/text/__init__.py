"""Texts: sentences and their markup, split for translation and put together again afterwards."""
