"""Pretrained models of runs: the common base of translators and language models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import jax

from mnmt_jax.config.sections import Config, Model
from mnmt_jax.data.document_context import Context
from mnmt_jax.data.instruction import get_instruction
from mnmt_jax.decoding.ensemble import Ensemble
from mnmt_jax.decoding.inference_model import InferenceModel
from mnmt_jax.decoding.weight_precision import STORED, compute_config, round_weights
from mnmt_jax.design.layout import Layout
from mnmt_jax.distributed.local import device_sets
from mnmt_jax.model.network import Network, build_model
from mnmt_jax.runs.fingerprint import tree_fingerprint
from mnmt_jax.vocabulary.language_codes import find_code
from mnmt_jax.vocabulary.vocabulary import Vocabulary

if TYPE_CHECKING:
    from mnmt_jax.decoding.model_loading import MeshChoice
    from mnmt_jax.runs.run_directory import RunDirectory


class PretrainedModel:
    """A model of a run; subclasses provide its uses.

    Attributes:
        replicas: the same model on other devices (`load_replicas`).
        contexts: document contexts that it was trained with.
    """

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        params: Any,
        *,
        run: str = "",
        step: int | None = None,
        mesh: jax.sharding.Mesh | None = None,
        members: Sequence[tuple[Model, Any]] = (),
        contexts: Iterable[Context] = (),
    ) -> None:
        """Assemble a model.

        Args:
            config: configuration of the run; `model`, `data.instruction` and `decode` are used.
            vocabulary: vocabulary of the run.
            params: parameters of the model; `Decode.weights` selects their precision.
            run: path of the run; empty if there is none.
            step: step of the checkpoint; None if unknown.
            mesh: mesh of the parameters, whose devices share each batch; None is one device.
            members: configurations and parameters of further models, whose probabilities are
                averaged with those of this one (`mnmt_jax.decoding.ensemble`).
            contexts: document contexts of the training.
        """
        self.config = config = config.bind_languages(vocabulary.languages, find_code)
        self.vocabulary = vocabulary
        self.run, self.step = run, step
        self.replicas: tuple[Self, ...] = ()
        self.contexts = tuple(contexts)
        weights = config.decode.weights
        model, rounded = _with_precision(config.model, params, weights, vocabulary.size)
        self.check_layout(model.layout, str(run or ""))
        instruction = get_instruction(config.data.instruction)
        if members:
            others = [_with_precision(*member, weights, vocabulary.size) for member in members]
            networks, rounded = zip((model, rounded), *others, strict=True)
            model = cast(Network, Ensemble(networks))  # search and scoring use both alike
            params = (params, *(member_params for _, member_params in members))
        self._parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
        self._fingerprint = None if weights == STORED else tree_fingerprint(params)
        self._inference_model = InferenceModel(model, rounded, vocabulary, instruction, mesh)

    @classmethod
    def load(
        cls,
        run: str | Path | RunDirectory,
        step: int | str | None = None,
        *,
        gin_files: Sequence[str] = (),
        bindings: Sequence[str] = (),
        mesh: MeshChoice = "local",
    ) -> Self:
        """Load a model from a run directory.

        Args:
            run: directory made by `mnmt train` or `mnmt import`.
            step: a checkpoint's step, "best", "average", or None for the newest.
            gin_files: files read after the run's configuration, e.g. with other `Decode` values.
            bindings: `Section.field=value`, read last.
            mesh: mesh of the devices that share each batch. `local` uses all devices of this
                process, arranged by `Mesh` in the files and bindings, or as fits
                (`mnmt_jax.distributed.local`). A list of devices is arranged in the same way. A
                `Mesh` config arranges all devices regardless of files and bindings. None is the
                first device.

        Raises:
            UserError: if the folder is not a run, has no such checkpoint, its model is not of this
                kind, or the sizes of `Mesh` do not divide the devices.
        """
        from mnmt_jax.decoding.model_loading import load_runs

        loaded, members = load_runs(run, step, gin_files=gin_files, bindings=bindings, mesh=mesh)
        return cls(
            loaded.config,
            loaded.vocabulary,
            loaded.params,
            run=loaded.run,
            step=loaded.step,
            mesh=loaded.mesh,
            members=members,
            contexts=loaded.contexts,
        )

    @classmethod
    def load_replicas(
        cls,
        run: str | Path | RunDirectory,
        count: int,
        step: int | str | None = None,
        *,
        gin_files: Sequence[str] = (),
        bindings: Sequence[str] = (),
    ) -> Self:
        """Load a model once for each of `count` equal sets of the devices of this process.

        Args:
            run: as in `load`, like the other arguments.
            count: number of sets.
            step: see `load`.
            gin_files: see `load`.
            bindings: see `load`.

        Returns:
            The model on the first set; its `replicas` are on the others.

        Raises:
            UserError: as in `load`, and if the devices cannot be divided so.
        """
        models = [
            cls.load(run, step, gin_files=gin_files, bindings=bindings, mesh=devices)
            for devices in device_sets(count)
        ]
        models[0].replicas = tuple(models[1:])
        return models[0]

    @staticmethod
    def check_layout(layout: Layout, run: str = "") -> None:
        """Check that a layout supports the uses of this class.

        Args:
            layout: layout of the model.
            run: path of its run, for the error; empty if it has none.

        Raises:
            UserError: otherwise.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        """Describe the model in one line."""
        origin = f"{self.run!r}, step={self.step}, " if self.run else ""
        layout, languages = self.config.model.layout, len(self.languages)
        return f"{type(self).__name__}({origin}layout={layout!r}, languages={languages})"

    @property
    def inference_model(self) -> InferenceModel:
        """The inference model."""
        return self._inference_model

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages the model has tags for."""
        return self.vocabulary.languages

    @property
    def parameters(self) -> int:
        """Number of the parameters, as stored; of all members of an ensemble."""
        return self._parameters

    @property
    def identity(self) -> dict[str, Any]:
        """Facts that output depends on besides model, search and input, or their fingerprints."""
        fingerprint = self._fingerprint
        return {
            "parameters": tree_fingerprint(self._inference_model.params)
            if fingerprint is None
            else fingerprint,
            "vocabulary": self.vocabulary.fingerprint,
            "instruction": self.config.data.instruction,
        }


def _with_precision(
    config: Model, params: Any, weights: str, vocabulary_size: int
) -> tuple[Network, Any]:
    """Return the network of a configuration, and its parameters with rounded weights."""
    model = build_model(compute_config(config, weights), vocabulary_size)
    tables = [table.name for table in model.plan.tables]
    return model, round_weights(params, weights, tables)
