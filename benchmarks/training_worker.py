"""Worker of `peers_training.py`: one engine that times the requested number of updates."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from engines import alone, peak_kib

from mnmt_jax.config.loading import load_config
from mnmt_jax.config.sections import Config

PEER = "transformers"
OURS = {
    "ours": [],
    "ours fused": ["Model.attention='fused'"],
    "ours kept": ["Model.remat=False"],
    "ours fused kept": ["Model.attention='fused'", "Model.remat=False"],
    "ours micro-batches": ["Optimizer.accumulate=8"],
    "ours prefix": ["Model.layout='prefix'"],
    "ours prefix fused": ["Model.layout='prefix'", "Model.attention='fused'"],
}
DEVICES = {"cpu": "float32", "gpu": "bfloat16"}  # device -> compute dtype
SMOOTHING = 0.1
_FIRST = 10  # smallest token id of a sentence
_PAD, _EOS = 1, 2  # ids of Hugging Face's model

Pairs = list[tuple[np.ndarray, np.ndarray]]
Update = Callable[[], int]  # runs one update; returns its sentence tokens


@dataclasses.dataclass(frozen=True)
class Size:
    """Size of the model and of its batches.

    Attributes:
        model: gin file of our model.
        vocab: entries of the vocabulary.
        rows: rows of a batch.
        length: tokens of a row, per side.
        bindings: gin bindings on top of the file.
    """

    model: str
    vocab: int
    rows: int
    length: int
    bindings: tuple[str, ...]


_SMALL = "Model.stage_layers=(3, 3)", "Model.embed=256", "Model.mlp=1024", "Model.heads=4"
_DROPOUT = "Model.dropout=0.1", "Model.attention_dropout=0.0"
_TRANSFORMER_TINY = (
    *("Model.stage_layers=(4, 4)", "Model.embed=128", "Model.mlp=256", "Model.heads=4"),
    *("Model.dropout=0.3", "Model.attention_dropout=0.0", "Data.instruction='5'"),
)
_MITRE = "Model.dropout=0.1", "Model.attention_dropout=0.1", "Model.remat=True"
SIZES = {
    "small": Size(
        "encoder_decoder_tiny", 8000, 16, 128, (*_SMALL, *_DROPOUT, "Data.instruction='5'")
    ),
    "transformer-tiny": Size("encoder_decoder_tiny", 8000, 32, 128, _TRANSFORMER_TINY),
    "tiny": Size("register_tiny", 500, 4, 128, ()),
    "466m": Size("register_mitre_466m", 160025, 32, 256, _MITRE),
    "913m": Size("register_mitre_913m", 160025, 32, 256, _MITRE),
}


@dataclasses.dataclass(frozen=True)
class Engine:
    """A trainer under comparison.

    Attributes:
        update: starts an update.
        wait: waits for the started updates.
        peak: returns the peak memory in bytes.
        flops: training FLOPs per sentence token; 0 if not counted.
        of_device: peak FLOP/s of the device; 0 if unknown.
    """

    update: Update
    wait: Callable[[], Any] = lambda: None
    peak: Callable[[], int] = lambda: 1024 * peak_kib()
    flops: float = 0.0
    of_device: float = 0.0


def main(name: str, size: str, device: str, pairs: str) -> None:
    """Answer every requested number of updates with speed and memory."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    make_engine = transformers if name == PEER else functools.partial(ours, bindings=OURS[name])
    engine = make_engine(SIZES[size], device, random_pairs(int(pairs), SIZES[size].vocab))
    for round_number, line in enumerate(sys.stdin):
        with alone() if round_number else contextlib.nullcontext():
            start = clock()
            tokens = sum(engine.update() for _ in range(int(line)))
            engine.wait()
            seconds = clock() - start
        answer = {"speed": tokens / seconds, "memory": engine.peak()}
        answer |= {"flops": engine.flops, "peak": engine.of_device}
        print(json.dumps(answer), flush=True)


def random_pairs(number: int, vocab: int) -> Pairs:
    """Return random sentence pairs, the same for all engines."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(18), 0.5, number), 3, 100)
    target_lengths = np.clip(lengths * rng.normal(1, 0.15, number), 3, 100)

    def sentence(size: float) -> np.ndarray:
        return rng.integers(_FIRST, vocab, int(size), dtype=np.int32)

    return [(sentence(n), sentence(m)) for n, m in zip(lengths, target_lengths, strict=True)]


def shuffled_forever(batches: list[Any]) -> Iterator[Any]:
    """Yield batches forever, shuffled in every epoch."""
    rng = np.random.default_rng(1)
    while True:
        yield from (batches[i] for i in rng.permutation(len(batches)))


def configuration(size: Size, device: str, bindings: list[str]) -> Config:
    """Return our configuration, which also gives the sizes of the other engine."""
    batch_bindings = [
        f"Model.dtype='{DEVICES[device]}'",
        f"Optimizer.label_smoothing={SMOOTHING}",
        f"Data.source_length={size.length}",
        f"Data.target_length={size.length}",
        "Data.max_segments=16",
    ]
    file = f"gin_configs/models/{size.model}.gin"
    return load_config([file], [*batch_bindings, *size.bindings, *bindings])


def ours(size: Size, device: str, pairs: Pairs, *, bindings: list[str]) -> Engine:
    """Return our training step on packed rows."""
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
    jax_device = jax.devices()[0]
    mesh = make_mesh(config.mesh, [jax_device])
    learner = Learner.from_config(config, size.vocab, mesh)
    converter = make_converter(vocabulary, learner.model.layout, config.data)
    sources, targets = (np.array([len(pair[side]) + 2 for pair in pairs]) for side in range(2))
    row_of = first_fit(sources, targets, converter.lengths)
    rows: list[list[Example]] = [[] for _ in range(row_of.max() + 1)]
    for row, (source, target) in zip(row_of, pairs, strict=True):
        rows[row].append(Example(source, target, 0, 1))
    np.random.default_rng(2).shuffle(rows)
    starts = range(0, len(rows) - size.rows + 1, size.rows)
    batches = shuffled_forever([rows[i : i + size.rows] for i in starts])

    def packed_arrays(batch: list[list[Example]]) -> Any:
        arrays = converter.batch(segments_from_rows(batch), size.rows)
        micro_batches = config.optimizer.accumulate
        return {
            name: array.reshape(micro_batches, -1, *array.shape[1:])
            for name, array in arrays.items()
            if name != TASK
        }

    example = packed_arrays(next(batches))
    init = make_init(learner, {name: array[0] for name, array in example.items()}, 0)
    state = create_state(init, mesh)
    with jax.set_mesh(mesh):
        placed = place_batch(example, mesh, leading=1)
        step = jax.jit(functools.partial(train_step, learner), donate_argnums=0)
        compiled = step.lower(state, placed).compile()

    def update() -> int:
        nonlocal state
        batch = next(batches)
        with jax.set_mesh(mesh):
            state, _ = compiled(state, place_batch(packed_arrays(batch), mesh, leading=1))
        return sum(len(e.source) + len(e.target) + 4 for row in batch for e in row)

    mean_sentence = Sentence(sources.mean(), targets.mean())
    engine = Engine(
        update,
        lambda: jax.block_until_ready(state.step),
        flops=learner.train_flops(mean_sentence, {})
        / (mean_sentence.source + mean_sentence.target),
    )
    if device == "cpu":
        return engine
    chip = chip_of(jax_device.device_kind)
    return dataclasses.replace(
        engine,
        peak=lambda: jax_device.memory_stats()["peak_bytes_in_use"],
        of_device=chip.peak_flops if chip else 0.0,
    )


def transformers(size: Size, device: str, pairs: Pairs) -> Engine:
    """Return a training step of Hugging Face's model on padded batches."""
    import torch

    torch_device = torch.device("cuda" if device == "gpu" else "cpu")
    if device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = (
        _huggingface_model(configuration(size, device, []), size.vocab).to(torch_device).train()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "gpu")
    if device == "gpu":  # layers alike share one program; that of the whole model takes minutes
        for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
            layer.compile(dynamic=True)
    batches = shuffled_forever(_of_similar_lengths(pairs, size))

    def padded(sentences: list[np.ndarray], tag: int) -> torch.Tensor:
        rows = [torch.tensor([tag, *sentence, _EOS]) for sentence in sentences]
        batch_tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_PAD)
        return batch_tokens.to(torch_device)

    def update() -> int:
        batch = next(batches)
        source, target = (padded([pair[side] for pair in batch], 4 + side) for side in range(2))
        start_tokens = torch.full((len(batch), 1), _EOS, device=torch_device)
        with torch.autocast(torch_device.type, torch.bfloat16, enabled=device == "gpu"):
            logits = model(
                input_ids=source,
                attention_mask=(source != _PAD).long(),
                decoder_input_ids=torch.cat([start_tokens, target[:, :-1]], 1),
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


def _huggingface_model(config: Config, vocab: int) -> Any:
    """Return an encoder-decoder with the same total number of layers, half on each side."""
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
