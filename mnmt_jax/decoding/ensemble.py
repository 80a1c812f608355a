"""Ensembles: several networks that predict the next token together.

The probability of a token is the mean of its probabilities under the members. Members share the
vocabulary, the language tags and the spans of a sentence; their sizes and methods may differ.

Source: fairseq, `sequence_generator.py`, `EnsembleModel.forward_decoder`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mnmt_jax.config.sections import Config, Model
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.plan import Plan
from mnmt_jax.errors import UserError
from mnmt_jax.model.key_values import Cache
from mnmt_jax.model.network import Network
from mnmt_jax.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """Networks whose probabilities are averaged, used like a `Network` in search and scoring.

    Its parameters are the tuple of those of the members. The caches of the members have the same
    steps and ancestry, so one `Cache` holds the layers of all of them.

    Attributes:
        members: the networks; layout, plan and configuration are those of the first.
    """

    members: tuple[Network, ...]

    @property
    def layout(self) -> Layout:
        """Layout of the first member."""
        return self.members[0].layout

    @property
    def plan(self) -> Plan:
        """Plan of the first member."""
        return self.members[0].plan

    @property
    def config(self) -> Model:
        """Configuration of the first member."""
        return self.members[0].config

    def check_lengths(self, lengths: Mapping[str, int]) -> None:
        """Check the lengths of spans for all members; see `Network.check_lengths`."""
        for member in self.members:
            member.check_lengths(lengths)

    def apply(
        self, variables: Mapping[str, Any], *args: Any, method: str = "logits", **options: Any
    ) -> Any:
        """Call `logits`, `prefill` or `step` of the members; see `Network`.

        Args:
            variables: `params` of all members.
            args: arguments of the method.
            method: name of the method.
            options: further arguments of the method.
        """
        if method == "step":
            return self._step(variables["params"], *args)
        results: list[Any] = [
            member.apply({"params": params}, *args, method=method, **options)
            for member, params in zip(self.members, variables["params"], strict=True)
        ]
        return mean_log_probs(results) if method == "logits" else _joined(results)

    def _step(self, params: Sequence[Any], tokens: Array, cache: Cache) -> tuple[Array, Cache]:
        all_layers: Any = cache.layers  # a tuple of layers for each member
        results: list[Any] = [
            member.apply(
                {"params": member_params},
                tokens,
                dataclasses.replace(cache, layers=layers),
                method="step",
            )
            for member, member_params, layers in zip(self.members, params, all_layers, strict=True)
        ]
        logits, caches = zip(*results, strict=True)
        return mean_log_probs(logits), _joined(caches)


def mean_log_probs(logits: Sequence[Float[Array, "*rows vocab"]]) -> Float[Array, "*rows vocab"]:
    """Return the logarithms of the mean of the probabilities of several logits, float32."""
    log_probs = [jax.nn.log_softmax(one.astype(jnp.float32), axis=-1) for one in logits]
    return jax.nn.logsumexp(jnp.stack(log_probs), axis=0) - jnp.log(jnp.float32(len(log_probs)))


def _joined(caches: Sequence[Cache]) -> Cache:
    """Return a cache with the layers of all members."""
    languages = {name: array for cache in caches for name, array in cache.languages.items()}
    layers: Any = tuple(cache.layers for cache in caches)
    return dataclasses.replace(caches[0], layers=layers, languages=languages)


def check_member(
    run: str, config: Config, vocabulary: Vocabulary, first: Config, first_vocabulary: Vocabulary
) -> None:
    """Check that a run can be a member of an ensemble with another one.

    Args:
        run: path of the run, for messages.
        config: its configuration.
        vocabulary: its vocabulary.
        first: configuration of the first member.
        first_vocabulary: vocabulary of the first member.

    Raises:
        UserError: if their inputs or outputs differ.
    """
    if vocabulary.fingerprint != first_vocabulary.fingerprint:
        raise UserError(
            f"Decode.ensemble: {run} has another vocabulary; the members must share theirs"
        )
    for name, value, expected in (
        ("Data.instruction", config.data.instruction, first.data.instruction),
        ("Model.layout", config.model.layout, first.model.layout),
        ("Model.register_factor", config.model.register_factor, first.model.register_factor),
    ):
        if value != expected:
            raise UserError(
                f"Decode.ensemble: {run} has {name}={value!r}, the first model {expected!r}; the "
                "members must have the same"
            )
