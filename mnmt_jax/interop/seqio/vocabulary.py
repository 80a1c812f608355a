"""seqio wrapper of the project's vocabulary. Imports TensorFlow; the core does not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf
import tensorflow_text as tf_text

from mnmt_jax.vocabulary.normalization import INVISIBLE, NONE, SPACES
from mnmt_jax.vocabulary.vocabulary import Vocabulary


class PieceVocabulary(seqio.Vocabulary):
    """seqio vocabulary with the ids of a `Vocabulary`, in Python and in TensorFlow graphs.

    The vocabulary is loaded on first use, so tasks can be registered before it exists.
    """

    def __init__(self, load: Callable[[], Vocabulary], language: str | None = None) -> None:
        """Store the function that loads the vocabulary.

        Args:
            load: returns the vocabulary; called once.
            language: language of the text to encode; needed only by a vocabulary with copies or
                additions.
        """
        super().__init__()
        self._load, self._language = load, language

    def in_language(self, language: str) -> PieceVocabulary:
        """Return the same vocabulary for text in one language."""
        return PieceVocabulary(lambda: self.vocabulary, language)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        """The wrapped vocabulary."""
        return self._load()

    @property
    def eos_id(self) -> int:
        """Id of the end-of-sentence token."""
        return Vocabulary.eos_id

    @property
    def unk_id(self) -> int:
        """Id of text that no piece covers."""
        return Vocabulary.unk_id

    @property
    def _base_vocab_size(self) -> int:
        return self.vocabulary.size

    def _encode(self, s: str) -> Sequence[int]:
        return self.vocabulary.encode(s, self._language)

    def _decode(self, ids: Iterable[int]) -> str:
        return self.vocabulary.decode(ids)

    # The vocabulary is plain Python; AutoGraph must not rewrite it.
    @tf.autograph.experimental.do_not_convert
    def _encode_tf(self, s: Any) -> Any:
        ids = self.vocabulary.spm_to_id_for(self._language)
        tokenizer = _tokenizer(self.vocabulary.sentencepiece_model_for(self._language))
        return tf.gather(ids, tokenizer.tokenize(_normalize(s, self.vocabulary.normalization)))

    @tf.autograph.experimental.do_not_convert
    def _decode_tf(self, ids: Any) -> Any:
        first_tag = self.vocabulary.first_tag
        is_text = tf.logical_and(ids > self.eos_id, ids < first_tag)
        pieces = tf.gather(self.vocabulary.id_to_spm, tf.where(is_text, ids, self.unk_id))
        tokenizer = _tokenizer(self.vocabulary.decoding_model)
        return tokenizer.detokenize(tf.ragged.boolean_mask(pieces, is_text))

    def __eq__(self, other: object) -> bool:
        """Compare language and fingerprint; seqio compares vocabularies before it mixes tasks."""
        if self is other:
            return True
        if not isinstance(other, PieceVocabulary):
            return False
        if self._language != other._language:
            return False
        return self.vocabulary.fingerprint == other.vocabulary.fingerprint

    def __hash__(self) -> int:
        return hash(PieceVocabulary)


class LanguageVocabulary(seqio.PassThroughVocabulary):
    """Pass-through vocabulary for the language index, a feature of one number."""

    def __init__(self) -> None:
        super().__init__(size=np.iinfo(np.int32).max)


def _normalize(text: Any, normalization: str) -> Any:
    """Normalise text as `mnmt_jax.vocabulary.normalization.normalize_lines` does."""
    if normalization == NONE:
        return text
    text = tf.strings.regex_replace(text, f"[{SPACES}]", " ")
    text = tf.strings.regex_replace(text, f"[{INVISIBLE}]", "")
    return tf_text.normalize_utf8(text, "NFC")


def _tokenizer(model: bytes) -> Any:
    # Not cached: a tokenizer holds a resource of the graph that it was created in.
    return tf_text.SentencepieceTokenizer(model=model, out_type=tf.int32)
