"""Word dropout: pieces of the source and of the target's inputs are replaced by `<unk>`.

With independent draws u_i from [0, 1), an input w_i of a side with rate r becomes

    w'_i = <unk> if u_i < r and w_i is a piece of text, else w_i

and the loss is that of predicting the unchanged labels. Language tags and ends of sentences stay.

Source: Bowman et al. 2016 ("Generating Sentences from a Continuous Space", arXiv 1511.06349,
section 3.1), who replace inputs of the decoder; on both sides, with 0.1, Sennrich et al. 2016
("Edinburgh Neural Machine Translation Systems for WMT 16"), who set the embeddings to zero instead.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from mnmt_jax.config.sections import Config
from mnmt_jax.design.fields import Rate
from mnmt_jax.design.generated_batch import Batch, BatchChange, GenerationModel
from mnmt_jax.design.layouts import SOURCE, TARGET
from mnmt_jax.design.method import Method
from mnmt_jax.design.plan import Plan
from mnmt_jax.distributed.dropout_mask import DropoutMask
from mnmt_jax.errors import UserError
from mnmt_jax.vocabulary.special_ids import UNK_ID


@dataclasses.dataclass(frozen=True)
class WordDropout(Method, name="word_dropout"):
    """Rates of the two sides.

    Attributes:
        source: probability with which a piece of the source is replaced.
        target: probability with which a piece of the target's inputs is replaced.
        vocabulary: codes of all languages, in the order of the vocabulary's tags; () uses the
            vocabulary's.
    """

    source: Rate = 0.1
    target: Rate = 0.1
    vocabulary: tuple[str, ...] = ()

    languages_field = "vocabulary"

    def check(self, config: Config, plan: Plan) -> None:
        """Check that the layout predicts next tokens, and that one of its roles has a rate.

        Raises:
            UserError: if it fills masks, which replace inputs already, or nothing is replaced.
        """
        del config
        if not (self.source or self.target):
            raise UserError(
                "WordDropout.source=0 and WordDropout.target=0 replace nothing; raise one, or "
                "leave 'word_dropout' out of Train.methods"
            )
        if not plan.layout.is_autoregressive:
            raise UserError(
                f"word_dropout: layout '{plan.layout.name}' masks its inputs already; leave "
                "'word_dropout' out of Train.methods"
            )
        if not self.target and SOURCE not in plan.layout.embedded_roles():
            raise UserError(
                f"word_dropout: layout '{plan.layout.name}' has no source, so that WordDropout."
                "source alone replaces nothing; set WordDropout.target"
            )

    def batch_changes(self) -> tuple[BatchChange, ...]:
        """Return the replacement of inputs."""
        return (BatchChange(self._replace),)

    def _replace(self, model: GenerationModel) -> Batch:
        """Return the tokens of both sides with some pieces replaced."""
        first_tag = model.vocab_size - len(self.known_languages())
        rates = {SOURCE: self.source, TARGET: self.target}
        arrays = {}
        for number, (role, rate) in enumerate(rates.items()):
            name = f"{role}_tokens"
            if not rate or name not in model.batch:
                continue
            tokens = jnp.asarray(model.batch[name])
            drop = DropoutMask(rate, jax.random.fold_in(model.rng, number))
            is_dropped = drop(jnp.ones(tokens.shape, jnp.float32)) == 0
            is_piece = (tokens > UNK_ID) & (tokens < first_tag)
            arrays[name] = jnp.where(is_dropped & is_piece, UNK_ID, tokens)
        return arrays
