"""Special ids, the same in every vocabulary. This module has no imports, to avoid cycles."""

PAD_ID = 0  # fills unused positions; padding is identified by segment ids, never by this id
EOS_ID = 1  # end of a sentence
UNK_ID = 2  # text that no piece covers
FIRST_PIECE = 3  # ids below it are special
