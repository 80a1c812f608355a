"""One engine of `peers_training.py`: reads numbers of updates and says how fast they were."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from engines import peak_kib

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config

PEER = "transformers"
OURS = {
    "ours": [],
    "ours fused": ["Model.attention='fused'"],
    "ours prefix": ["Model.layout='prefix'"],
}
DEVICES = {"cpu": "float32", "gpu": "bfloat16"}  # and the type that they compute in
SMOOTHING = 0.1
_FIRST = 10  # of the ids that sentences have
_PAD, _EOS = 1, 2  # of Hugging Face's

Pairs = list[tuple[np.ndarray, np.ndarray]]
Update = Callable[[], int]  # trains once; returns the tokens that it learns of


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained.

    Attributes:
        model: gin file of ours.
        vocab: entries of the vocabulary.
        rows: of a batch.
        length: tokens of a side of a row.
        bindings: upon the file.
    """

    model: str
    vocab: int
    rows: int
    length: int
    bindings: tuple[str, ...]


_SMALL = "Model.stage_layers=(3, 3)", "Model.embed=256", "Model.mlp=1024", "Model.heads=4"
_DROPOUT = "Model.dropout=0.1", "Model.attention_dropout=0.0"
_MITRE = "Model.dropout=0.1", "Model.attention_dropout=0.1", "Model.remat=True"
SIZES = {
    "small": Size(
        "encoder_decoder_tiny", 8000, 16, 128, (*_SMALL, *_DROPOUT, "Data.instruction='5'")
    ),
    "466m": Size("register_mitre_466m", 160025, 32, 256, _MITRE),
    "913m": Size("register_mitre_913m", 160025, 32, 256, _MITRE),
}


@dataclasses.dataclass(frozen=True)
class Engine:
    """A model that is trained.

    Attributes:
        update: starts an update.
        wait: waits for those that were started.
        peak: bytes that it had at most.
        flops: of a sentence token; 0 if not counted.
        of_device: FLOP/s that the device has; 0 if unknown.
    """

    update: Update
    wait: Callable[[], Any] = lambda: None
    peak: Callable[[], int] = lambda: 1024 * peak_kib()
    flops: float = 0.0
    of_device: float = 0.0


def main(name: str, size: str, device: str, pairs: str) -> None:
    """Answers each number of updates with how fast they were."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    make = transformers if name == PEER else functools.partial(ours, bindings=OURS[name])
    engine = make(SIZES[size], device, drawn(int(pairs), SIZES[size].vocab))
    for line in sys.stdin:
        start = clock()
        tokens = sum(engine.update() for _ in range(int(line)))
        engine.wait()
        told = {"speed": tokens / (clock() - start), "memory": engine.peak()}
        told |= {"flops": engine.flops, "peak": engine.of_device}
        print(json.dumps(told), flush=True)


def drawn(number: int, vocab: int) -> Pairs:
    """Draws sentence pairs, the same for all engines."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(18), 0.5, number), 3, 100)
    others = np.clip(lengths * rng.normal(1, 0.15, number), 3, 100)

    def sentence(size: float) -> np.ndarray:
        return rng.integers(_FIRST, vocab, int(size), dtype=np.int32)

    return [(sentence(n), sentence(m)) for n, m in zip(lengths, others, strict=True)]


def again_and_again(batches: list[Any]) -> Iterator[Any]:
    """Yields batches in an order that is drawn for each epoch."""
    rng = np.random.default_rng(1)
    while True:
        yield from (batches[i] for i in rng.permutation(len(batches)))


def configuration(size: Size, device: str, bindings: list[str]) -> Config:
    """Returns ours, whose sizes are theirs too."""
    more = [
        f"Model.dtype='{DEVICES[device]}'",
        f"Optimizer.label_smoothing={SMOOTHING}",
        f"Data.source_length={size.length}",
        f"Data.target_length={size.length}",
        "Data.max_segments=16",
    ]
    file = f"gin_configs/models/{size.model}.gin"
    return load_config([file], [*more, *size.bindings, *bindings])


def ours(size: Size, device: str, pairs: Pairs, *, bindings: list[str]) -> Engine:
    """Returns our trainer's step on packed rows."""
    import jax

    from mnmt_jax.data.converter import TASK, Example, make_converter, segments_from_rows
    from mnmt_jax.data.packing import first_fit
    from mnmt_jax.distributed.chips import chip_of
    from mnmt_jax.distributed.sharding import make_mesh, place_batch
    from mnmt_jax.model.flops import Sentence
    from mnmt_jax.training.learner import Learner
    from mnmt_jax.training.state import create_state, make_init
    from mnmt_jax.training.train_step import train_step

    config = configuration(size, device, bindings)
    vocabulary: Any = types.SimpleNamespace(
        tag_ids=np.array([4, 5], np.int32), eos_id=1, mask_id=3, size=size.vocab
    )
    own = jax.devices()[0]
    mesh = make_mesh(config.mesh, [own])
    learner = Learner.from_config(config, size.vocab, mesh)
    converter = make_converter(vocabulary, learner.model.layout, config.data)
    sources, targets = (np.array([len(pair[side]) + 2 for pair in pairs]) for side in range(2))
    row_of = first_fit(sources, targets, converter.lengths)
    rows: list[list[Example]] = [[] for _ in range(row_of.max() + 1)]
    for row, (source, target) in zip(row_of, pairs, strict=True):
        rows[row].append(Example(source, target, 0, 1))
    np.random.default_rng(2).shuffle(rows)
    starts = range(0, len(rows) - size.rows + 1, size.rows)
    batches = again_and_again([rows[i : i + size.rows] for i in starts])

    def make(batch: list[list[Example]]) -> Any:
        made = converter.batch(segments_from_rows(batch), size.rows)
        return {name: array[None] for name, array in made.items() if name != TASK}

    first = {name: array[0] for name, array in make(next(batches)).items()}
    state = create_state(make_init(learner, first, 0), mesh)
    step = jax.jit(functools.partial(train_step, learner), donate_argnums=0)

    def update() -> int:
        nonlocal state
        batch = next(batches)
        with jax.set_mesh(mesh):
            state, _ = step(state, place_batch(make(batch), mesh, leading=1))
        return sum(len(e.source) + len(e.target) + 4 for row in batch for e in row)

    mean = Sentence(sources.mean(), targets.mean())
    engine = Engine(
        update,
        lambda: jax.block_until_ready(state.step),
        flops=learner.train_flops(mean, {}) / (mean.source + mean.target),
    )
    if device == "cpu":
        return engine
    chip = chip_of(own.device_kind)
    return dataclasses.replace(
        engine,
        peak=lambda: own.memory_stats()["peak_bytes_in_use"],
        of_device=chip.peak_flops if chip else 0.0,
    )


def transformers(size: Size, device: str, pairs: Pairs) -> Engine:
    """Returns Hugging Face's model on padded batches."""
    import torch

    place = torch.device("cuda" if device == "gpu" else "cpu")
    if device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = _peer(configuration(size, device, []), size.vocab).to(place).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "gpu")
    run = torch.compile(model, dynamic=True) if device == "gpu" else model
    batches = again_and_again(_of_similar_lengths(pairs, size))

    def padded(sentences: list[np.ndarray], tag: int) -> torch.Tensor:
        rows = [torch.tensor([tag, *sentence, _EOS]) for sentence in sentences]
        found = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_PAD)
        return found.to(place)

    def update() -> int:
        batch = next(batches)
        source, target = (padded([pair[side] for pair in batch], 4 + side) for side in range(2))
        begin = torch.full((len(batch), 1), _EOS, device=place)
        with torch.autocast(place.type, torch.bfloat16, enabled=device == "gpu"):
            logits = run(
                input_ids=source,
                attention_mask=(source != _PAD).long(),
                decoder_input_ids=torch.cat([begin, target[:, :-1]], 1),
                use_cache=False,
            ).logits
            loss = torch.nn.functional.cross_entropy(
                logits.view(-1, size.vocab),
                target.view(-1),
                ignore_index=_PAD,
                label_smoothing=SMOOTHING,
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return sum(len(side) + 2 for pair in batch for side in pair)

    if device == "cpu":
        return Engine(update)
    return Engine(update, torch.cuda.synchronize, torch.cuda.max_memory_allocated)


def _peer(config: Config, vocab: int) -> Any:
    """Returns an encoder-decoder with as many layers in all, half of a decoder's on each side."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    model = config.model
    layers = sum(model.stage_layers) // 2
    names: dict[str, Any] = {"vocab_size": vocab, "d_model": model.embed, "dropout": model.dropout}
    for side in ("encoder", "decoder"):
        sizes = {"layers": layers, "ffn_dim": model.mlp, "attention_heads": model.heads}
        names |= {f"{side}_{name}": value for name, value in sizes.items()}
        names[f"{side}_layerdrop"] = 0.0
    names |= {"attention_dropout": model.attention_dropout, "activation_dropout": 0.0}
    return M2M100ForConditionalGeneration(M2M100Config(**names))


def _of_similar_lengths(pairs: Pairs, size: Size) -> list[Pairs]:
    batches: list[Pairs] = [[]]
    tokens = 0
    for pair in sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0]))):
        tokens += len(pair[1]) + 2
        if tokens > size.rows * size.length:
            batches.append([])
            tokens = len(pair[1]) + 2
        batches[-1].append(pair)
    return batches


if __name__ == "__main__":
    main(*sys.argv[1:])
