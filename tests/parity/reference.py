"""Reference files: a model of the authors, its inputs, and the outputs of their code."""

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mnmt_jax.config.sections import Model
from mnmt_jax.design.layout import Layout
from mnmt_jax.design.layouts import get_layout
from mnmt_jax.files.lazy_array import LazyArray
from mnmt_jax.interop.names import FAIRSEQ, parameter_entries, read_params, written_tensors
from mnmt_jax.interop.token_table import SPECIAL_IDS
from mnmt_jax.methods.adaption import Adaption
from mnmt_jax.methods.cut_residual import CutResidual
from mnmt_jax.methods.graformer import Graformer
from mnmt_jax.methods.language_layers import LanguageLayers
from mnmt_jax.methods.mrasp2 import MRASP2
from mnmt_jax.methods.tables import Tables
from mnmt_jax.methods.tuning_layers import TuningLayers
from tests.made_params import plain_rows
from tests.sample_batches import pack

SHIPPED = Path(__file__).parent.parent / "golden"
FOLDER = Path(os.environ.get("MNMT_GOLDEN_DIR", SHIPPED))


def permute_rows(table: np.ndarray) -> np.ndarray:
    """Reorder embedding rows, [vocab, embed], from fairseq's id order to ours."""
    return table[plain_rows(len(table))]


def unpermute_rows(table: np.ndarray) -> np.ndarray:
    """Reorder embedding rows, [vocab, embed], from our id order to fairseq's."""
    return table[np.argsort(plain_rows(len(table)))]


def permute_ids(ids: np.ndarray) -> np.ndarray:
    """Convert token ids from fairseq's order to ours."""
    to_ours = np.argsort(SPECIAL_IDS)
    return np.where(ids < len(to_ours), to_ours[np.minimum(ids, len(to_ours) - 1)], ids)


def read_parameters(state: Mapping[str, np.ndarray], config: Model, layout: Layout) -> dict:
    """Build our parameter tree from a fairseq state dictionary.

    Args:
        state: name -> array, in PyTorch's layout.
        config: sizes.
        layout: structure, with layer counts.

    Raises:
        UserError: if tensors are missing, unexpected or have another shape; lists all of them.
    """
    ending = ".embed_tokens.weight"
    size = next((len(array) for name, array in state.items() if name.endswith(ending)), 0)
    tensors = {name: LazyArray.of(np.asarray(array)) for name, array in state.items()}
    params = read_params(tensors, parameter_entries(config, layout, FAIRSEQ, plain_rows(size)))
    return _read_tree(params)


def write_parameters(params: Mapping, config: Model, layout: Layout) -> dict[str, np.ndarray]:
    """Return the fairseq state dictionary of our parameters; the inverse of `read_parameters`."""
    table = parameter_entries(config, layout, FAIRSEQ, plain_rows(len(params["embedding"])))
    return {name: tensor.read() for name, tensor in written_tensors(params, table)}


def _read_tree(params: Any) -> Any:
    if isinstance(params, LazyArray):
        return params.read()
    return {key: _read_tree(value) for key, value in params.items()}


@dataclasses.dataclass(frozen=True)
class Reference:
    """A reference file."""

    values: dict
    config: Model
    layout: Layout
    params: dict
    batch: dict
    labels: np.ndarray
    sources: list

    @property
    def vocab_size(self) -> int:
        return len(self.params["embedding"])

    @property
    def asked(self) -> np.ndarray:
        """Mask of the labels that count."""
        return (self.batch[f"{self.layout.generated}_segment_ids"] != 0) & (self.labels >= 0)

    @property
    def contrastive_layer(self) -> int:
        """Layer of the contrastive term, counted within stage 2 by the authors; 0 means no term."""
        position = int(self.values.get("instruction_layer_in_stage2", 0))
        return position and int(self.values["stage1_layers"]) + position

    @property
    def sentence_contrast(self) -> tuple:
        """The term of mRASP2, if the file has it."""
        if "temperature" not in self.values:
            return ()
        method = MRASP2(
            self.config.stage_layers[0],
            temperature=float(self.values["temperature"]),
            weight=float(self.values["contrastive_lambda"]),
        )
        return method.objectives()

    @property
    def label_smoothing(self) -> float:
        """Label smoothing in this project's form; older fairseq also smooths the correct entry."""
        smoothing = float(self.values.get("label_smoothing", 0.1))
        is_old = str(self.values.get("smoothing_form", "new")).startswith("old")
        return smoothing * (1 - is_old / self.vocab_size)

    @property
    def train_batch(self) -> dict:
        """The training batch: spans, labels, tags and identity pairs."""
        tags = np.array([[[*source, 0][0]] for source in self.sources], np.int32)
        labels = f"{self.layout.generated}_labels"
        batch = {"target_lang": tags} | self.batch | {labels: self.labels}
        if len(self.layout.embedded_roles()) == 1:
            return batch
        pairs = []
        if self.sentence_contrast:
            width = self.labels.shape[1]
            ids = (self.labels != 0).astype(np.int32)
            return batch | {
                "positive_source_tokens": self.labels,
                "positive_source_positions": np.arange(width, dtype=np.int32)[None] * ids,
                "positive_source_segment_ids": ids,
            }
        for source, label in zip(self.sources, self.labels, strict=True):
            target = label[: np.flatnonzero(label)[-1] + 1].tolist()  # with eos
            pairs.append(([source[0], *target], target))
        spans = spans_of(self.values, self.config, self.layout, pairs)
        return batch | {
            f"identity_{name}": array
            for name, array in spans.items()
            if not name.startswith("target")
        }


def _cut_residual(values) -> Model:
    """Return the "Residual" baseline: an encoder-decoder without one residual connection."""
    sublayer = {"self_attn": "attention", "ffn": "mlp"}[str(values["residual_removed"])]
    return Model(
        layout="encoder_decoder",
        stage_layers=(int(values["encoder_layers"]), int(values["decoder_layers"])),
        norm="pre" if values["pre_norm"] else "post",
        methods=(CutResidual(int(values["modified_layer_index"]) + 1, sublayer),),
        **_sizes(values),
    )


def _plain(values) -> Model:
    """Return a standard encoder-decoder; mRASP2 changes only training."""
    return Model(
        layout="encoder_decoder",
        stage_layers=(int(values["encoder_layers"]), int(values["decoder_layers"])),
        norm="pre" if values["pre_norm"] else "post",
        **_sizes(values),
    )


def _language_layers(values) -> Model:
    """Return FCLL, or SD: one decoder layer with branches, one encoder layer without a residual."""
    layers = int(values["layers"])
    languages = tuple(f"l{number}" for number in range(1, int(values["languages"]) + 1))
    branches = LanguageLayers(
        languages=languages,
        without=(languages[int(values["centre_language"]) - 1],),
        mlp=int(values["branch_inner"]),
    )
    methods = (branches,)
    if "modified_layer_index" in values:
        layer = int(values["modified_layer_index"]) + 1
        norm = str(values["encoder_modified_layer_norm"])
        branches = dataclasses.replace(branches, layers=(layers + layer,))
        methods = (branches, CutResidual(layer, "mlp", norm))
    return Model(
        layout="encoder_decoder",
        stage_layers=(layers, layers),
        norm="pre" if values["pre_norm"] else "post",
        methods=methods,
        **_sizes(values),
    )


def _ends(values) -> dict:
    """Return the settings common to Graformer's models."""
    assert str(values["activation"]).startswith("gelu") and values["pre_norm"]
    shared = {
        "activation": "gelu",
        "norm": "pre",
        "positions": ("learned", int(values["max_positions"])),
        "embedding_scale": float(values["embed_scale"]) != 1.0,
    }
    return shared | _sizes(values)


def _language_model(values) -> Model:
    name = {"mbert": "masked_lm", "mgpt": "causal_lm"}[str(values["family"])]
    return Model(layout=name, stage_layers=(int(values["layers"]),), **_ends(values))


def graft_model(values) -> Model:
    """Return the grafted model: source layers, target-only layers and the layers above."""
    own = int(values["decoder_pretrained_layers"])
    method = Graformer(
        fusion=bool(values.get("lm_fusion", True)),
        encoder_layers=int(values["encoder_pretrained_layers"]),
    )
    return Model(
        layout="grafted",
        stage_layers=(int(values["encoder_layers"]), own, int(values["decoder_layers"]) - own),
        methods=(method,),
        **_ends(values),
    )


def _adapter(values) -> Model:
    return Model(
        layout="encoder_decoder",
        stage_layers=(int(values["encoder_layers"]), int(values["decoder_layers"])),
        methods=(TuningLayers(), Tables(output=True)),
        **_ends(values),
    )


# Files of methods say their family; those of registers and two stages have none.
FAMILIES = {
    "mbert": _language_model,
    "mgpt": _language_model,
    "graft": graft_model,
    "adapter": _adapter,
    "residual": _cut_residual,
    "fcll": _language_layers,
    "sd": _language_layers,
    "sd_merged": _language_layers,
    "mrasp2_contrastive": _plain,
}


def _family(path: Path) -> str:
    with np.load(path) as archive:
        return str(archive["family"]) if "family" in archive.files else ""


_FOUND = sorted([*FOLDER.glob("*.npz"), *FOLDER.glob("methods/*.npz")])
FILES = [path for path in _FOUND if _family(path) in ("", *FAMILIES)]


def load_reference(path: Path) -> Reference:
    with np.load(path) as archive:
        values = {name: archive[name] for name in archive.files}
    config = _config(values)
    layout = get_layout(config.layout, config.stage_layers)
    state = {
        name.removeprefix("param/"): v for name, v in values.items() if name.startswith("param/")
    }
    given = "source_lengths" if "source_lengths" in values else "target_lengths"
    sources = [[]] * len(values[given])
    if "source_lengths" in values:
        sources = rows_of(values["source_right_padded"], values["source_lengths"])
    lengths = values["target_lengths" if layout.is_autoregressive else "source_lengths"]
    labels = rows_of(values["target_labels"], lengths)
    batch = spans_of(values, config, layout, list(zip(sources, labels, strict=True)))
    if "target_language" in values:  # theirs count from 1
        batch["target_lang"] = values["target_language"].astype(np.int32)[:, None] - 1
    padded = np.zeros_like(batch[f"{layout.generated}_tokens"])
    for row, label in enumerate(labels):
        padded[row, : len(label)] = label
    if not layout.is_autoregressive:  # theirs have padding where nothing is asked for
        padded = np.where(padded == 0, -1, padded)
    return Reference(
        values, config, layout, read_parameters(state, config, layout), batch, padded, sources
    )


def _sizes(values) -> dict:
    sizes = {"embed": int(values["dim"]), "mlp": int(values["ffn"]), "heads": int(values["heads"])}
    return sizes | {"dropout": 0.0}


def _config(values) -> Model:
    if "family" in values:
        return FAMILIES[str(values["family"])](values)
    shared = _sizes(values)
    if "register_factor" in values:
        return Model(
            layout="register",
            stage_layers=(int(values["layers"]),),
            register_factor=float(values["register_factor"]),
            **shared,
        )
    stages = (int(values["stage1_layers"]), int(values["stage2_layers"]))
    sees_trigger = "_trigger" if int(values["attention_position_bias"]) else ""
    return Model(
        layout=("two_stage" if stages[0] else "prefix") + sees_trigger,
        stage_layers=stages if stages[0] else stages[1:],
        norm="pre" if values["pre_norm"] else "post",
        methods=(Adaption(int(values["adaption_inner"])),) if values["adaption"] else (),
        **shared,
    )


def rows_of(padded: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [permute_ids(row[:n]).tolist() for row, n in zip(padded, lengths, strict=True)]


def spans_of(values, config, layout, pairs):
    """Lay out rows: registers copy the tag; MITRE starts from the tag, other models from eos."""
    uses_tag = "register_factor" in values
    triggers = [1] * len(pairs)
    if "target_input" in values:
        triggers = permute_ids(values["target_input"][:, 0]).tolist()
    examples = []
    for (source, label), trigger in zip(pairs, triggers, strict=True):
        first = source[0] if uses_tag else trigger
        spans = {
            "source": source,
            "register": source[:1] * math.ceil(len(source) / config.register_factor),
            "trigger": [first],
            "target": [first, *label[:-1]],
        }
        examples.append([{role: spans[role] for role in layout.embedded_roles()}])
    lengths = {r: max(len(e[0][r]) for e in examples) for r in layout.embedded_roles()}
    return pack(examples, lengths)
