"""Ids that mean the same in every vocabulary. Imports nothing, so that anything may import it."""

PAD_ID = 0  # fills unused positions; padding is told by segment ids, never by this id
EOS_ID = 1  # ends a sentence
UNK_ID = 2  # text that no piece covers
