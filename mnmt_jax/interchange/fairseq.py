"""Names and shapes of the authors' fairseq models, to ours and back.

One table maps each parameter of ours to the name the reference gives it and to the change of shape
between PyTorch's Linear ([out, in]) and ours. Reading and writing are the same table in two
directions, so a round trip is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from mnmt_jax.config import Model
from mnmt_jax.layout import Layout

State = Mapping[str, np.ndarray]
Path = tuple[str, ...]

# fairseq's dictionary starts <s> 0, <pad> 1, </s> 2, <unk> 3; ours pad 0, eos 1, unk 2, then <s>.
FAIRSEQ_SPECIALS = (1, 2, 3, 0)


@dataclasses.dataclass(frozen=True)
class Entry:
    """How one parameter of ours is stored by the reference.

    Attributes:
        path: keys into our parameter tree.
        names: the reference's names; a tied matrix is stored under several.
        read: from the reference's array to ours.
        write: the inverse.
    """

    path: Path
    names: tuple[str, ...]
    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


def permute_rows(table: np.ndarray, specials: Sequence[int] = FAIRSEQ_SPECIALS) -> np.ndarray:
    """Moves embedding rows from fairseq's id order [vocab, embed] to ours."""
    order = np.arange(len(table))
    order[: len(specials)] = specials
    return table[order]


def unpermute_rows(table: np.ndarray, specials: Sequence[int] = FAIRSEQ_SPECIALS) -> np.ndarray:
    """Undoes `permute_rows`."""
    order = np.arange(len(table))
    order[: len(specials)] = specials
    return table[np.argsort(order)]


def permute_ids(ids: np.ndarray, specials: Sequence[int] = FAIRSEQ_SPECIALS) -> np.ndarray:
    """Moves token ids from fairseq's order to ours."""
    to_ours = np.argsort(specials)
    return np.where(ids < len(specials), to_ours[np.minimum(ids, len(specials) - 1)], ids)


def read_parameters(state: State, config: Model, layout: Layout) -> dict:
    """Builds our parameter tree from a fairseq state dictionary.

    Args:
        state: name -> array, PyTorch layout.
        config: sizes.
        layout: structure, with layer counts.

    Raises:
        ValueError: if tensors are missing, unexpected or of another shape, with the whole list.
    """
    entries = list(_entries(config, layout))
    expected = {name for entry in entries for name in entry.names}
    problems = [f"missing {name}" for name in sorted(expected - set(state))]
    problems += [f"unexpected {name}" for name in sorted(set(state) - expected - _IGNORED)]
    if problems:
        raise ValueError(f"not a '{layout.name}' checkpoint of this size: {'; '.join(problems)}")
    params: dict = {}
    for entry in entries:
        node = params
        for key in entry.path[:-1]:
            node = node.setdefault(key, {})
        try:
            node[entry.path[-1]] = entry.read(np.asarray(state[entry.names[0]]))
        except ValueError as error:
            raise ValueError(f"{entry.names[0]}: {error}") from error
    return params


def write_parameters(params: Mapping, config: Model, layout: Layout) -> dict[str, np.ndarray]:
    """Returns the fairseq state dictionary of our parameters; the inverse of `read_parameters`."""
    state = {}
    for entry in _entries(config, layout):
        node = params
        for key in entry.path:
            node = node[key]
        for name in entry.names:
            state[name] = entry.write(np.asarray(node))
    return state


_IGNORED = frozenset(
    f"{side}.{name}"
    for side in ("encoder", "decoder")
    for name in ("version", "embed_positions._float_tensor")
)


def _entries(config: Model, layout: Layout) -> Iterator[Entry]:
    yield Entry(
        ("embedding",),
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", _OUTPUT),
        permute_rows,
        unpermute_rows,
    )
    number, last = 0, len(layout.stages) - 1
    for index, stage in enumerate(layout.stages):
        side = "decoder" if index == last else "encoder"
        for layer in range(stage.layers):
            yield from _layer(
                config, f"layer_{number}", f"{side}.layers.{layer}", bool(stage.memory)
            )
            number += 1
        if config.norm == "pre":
            yield from _norm((f"stage_{index}_norm",), f"{side}.layer_norm")
    if config.adaption_mlp:
        for place in ("input", "output"):
            for ours, theirs in (("wi", "fc1"), ("wo", "fc2")):
                yield from _linear((f"adaption_{place}", ours), f"decoder.{theirs}_{place}")


_OUTPUT = "decoder.output_projection.weight"


def _layer(config: Model, ours: str, theirs: str, has_memory: bool) -> Iterator[Entry]:
    yield from _attention(config, (ours, "attention"), f"{theirs}.self_attn")
    yield from _norm((ours, "attention_norm"), f"{theirs}.self_attn_layer_norm")
    if has_memory:
        yield from _attention(config, (ours, "memory_attention"), f"{theirs}.encoder_attn")
        yield from _norm((ours, "memory_attention_norm"), f"{theirs}.encoder_attn_layer_norm")
    yield from _linear((ours, "mlp", "wi"), f"{theirs}.fc1")
    yield from _linear((ours, "mlp", "wo"), f"{theirs}.fc2")
    yield from _norm((ours, "mlp_norm"), f"{theirs}.final_layer_norm")


def _attention(config: Model, path: Path, name: str) -> Iterator[Entry]:
    heads, width, embed = config.heads, config.head_dim, config.embed
    for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        yield Entry(
            (*path, ours, "kernel"),
            (f"{name}.{theirs}.weight",),
            lambda weight: weight.T.reshape(embed, heads, width),
            lambda kernel: kernel.reshape(embed, embed).T,
        )
        yield Entry(
            (*path, ours, "bias"),
            (f"{name}.{theirs}.bias",),
            lambda bias: bias.reshape(heads, width),
            lambda bias: bias.reshape(embed),
        )
    yield Entry(
        (*path, "out", "kernel"),
        (f"{name}.out_proj.weight",),
        lambda weight: weight.T.reshape(heads, width, embed),
        lambda kernel: kernel.reshape(embed, embed).T,
    )
    yield Entry((*path, "out", "bias"), (f"{name}.out_proj.bias",), _same, _same)


def _linear(path: Path, name: str) -> Iterator[Entry]:
    yield Entry((*path, "kernel"), (f"{name}.weight",), np.transpose, np.transpose)
    yield Entry((*path, "bias"), (f"{name}.bias",), _same, _same)


def _norm(path: Path, name: str) -> Iterator[Entry]:
    yield Entry((*path, "scale"), (f"{name}.weight",), _same, _same)
    yield Entry((*path, "bias"), (f"{name}.bias",), _same, _same)


def _same(array: np.ndarray) -> np.ndarray:
    return array
