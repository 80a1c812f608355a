"""Compares training on a CPU core with Hugging Face's, of a model of the same sizes.

    python benchmarks/peers_training.py [--pairs 2000] [--updates 4] [--rounds 5]

An encoder-decoder of 3 and 3 layers of 256 and sentence pairs whose lengths vary as a text's do, a
mean of 20 pieces. Ours packs them into 16 rows of 128, Hugging Face's (M2M-100's class, AdamW, the
usual loop) takes batches of similar lengths of as many target tokens. Each is a process with one
thread on one core; they take turns. Prints Markdown: sentence tokens for each processor second
(the most of all rounds), as multiples of Hugging Face's, and the most memory. Making batches of
sentences is counted, reading text is not.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from engines import Worker, peak_kib

from mnmt_jax.errors import run_command
from mnmt_jax.evaluation.table import markdown_table

ENGINES = ("transformers", "ours")
VOCAB, EMBED, HEADS, LAYERS, DROPOUT, SMOOTHING = 8000, 256, 4, 3, 0.1, 0.1
ROWS, LENGTH = 16, 128
_FIRST = 10  # of the ids that sentences have
_PAD, _EOS = 1, 2  # of Hugging Face's

Pairs = list[tuple[np.ndarray, np.ndarray]]
Update = Callable[[], int]  # trains once; returns the tokens that it learnt of


def main() -> None:
    """Lets engines take turns and prints, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000, help="sentence pairs, again and again")
    parser.add_argument("--updates", type=int, default=4, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--engine", choices=ENGINES, help="answer as this one (for the script)")
    flags = parser.parse_args()
    if flags.engine:
        serve({"ours": ours, "transformers": transformers}[flags.engine](drawn(flags.pairs)))
    else:
        print_table(flags)


def print_table(flags: argparse.Namespace) -> None:
    """Prints what each engine reaches."""
    own = [sys.executable, __file__, f"--pairs={flags.pairs}"]
    workers = {name: Worker([*own, f"--engine={name}"], flags.core) for name in ENGINES}
    told: dict[str, list[dict[str, float]]] = {name: [] for name in ENGINES}
    for _, name in itertools.product(range(flags.rounds + 1), ENGINES):
        told[name].append(workers[name].ask(flags.updates))
    for worker in workers.values():
        worker.end()
    most = {name: max(each["speed"] for each in told[name][1:]) for name in ENGINES}
    rows = [
        [name, f"{most[name]:.0f}", f"{most[name] / most[ENGINES[0]]:.2f}"]
        + [f"{told[name][-1]['memory'] / 2**20:.2f}"]
        for name in ENGINES
    ]
    print(markdown_table(["engine", "tokens a second", "of transformers", "memory, GiB"], rows))


def serve(update: Update) -> None:
    """Reads numbers of updates and says how fast they were."""
    for line in sys.stdin:
        start = time.process_time()
        tokens = sum(update() for _ in range(int(line)))
        speed = tokens / (time.process_time() - start)
        print(json.dumps({"speed": speed, "memory": peak_kib()}), flush=True)


def drawn(number: int) -> Pairs:
    """Draws sentence pairs, the same for all engines."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(18), 0.5, number), 3, 100)
    others = np.clip(lengths * rng.normal(1, 0.15, number), 3, 100)

    def sentence(size: float) -> np.ndarray:
        return rng.integers(_FIRST, VOCAB, int(size), dtype=np.int32)

    return [(sentence(n), sentence(m)) for n, m in zip(lengths, others, strict=True)]


def again_and_again(batches: list[Any]) -> Iterator[Any]:
    """Yields batches in an order that is drawn for each epoch."""
    rng = np.random.default_rng(1)
    while True:
        yield from (batches[i] for i in rng.permutation(len(batches)))


def ours(pairs: Pairs) -> Update:
    """Returns an update of our trainer's step on packed rows."""
    import jax

    from mnmt_jax.config.loading import load_config
    from mnmt_jax.data.converter import TASK, Example, make_converter, segments_from_rows
    from mnmt_jax.data.packing import first_fit
    from mnmt_jax.distributed.sharding import make_mesh, place_batch
    from mnmt_jax.training.learner import Learner
    from mnmt_jax.training.state import create_state, make_init
    from mnmt_jax.training.train import train_step

    config = load_config(["gin_configs/models/encoder_decoder_tiny.gin"], _bindings())
    vocabulary: Any = types.SimpleNamespace(
        tag_ids=np.array([4, 5], np.int32), eos_id=1, mask_id=3, size=VOCAB
    )
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    learner = Learner.from_config(config, VOCAB, mesh)
    converter = make_converter(vocabulary, learner.model.layout, config.data)
    sources, targets = (np.array([len(pair[side]) + 2 for pair in pairs]) for side in range(2))
    row_of = first_fit(sources, targets, converter.lengths)
    rows: list[list[Example]] = [[] for _ in range(row_of.max() + 1)]
    for row, (source, target) in zip(row_of, pairs, strict=True):
        rows[row].append(Example(source, target, 0, 1))
    np.random.default_rng(2).shuffle(rows)
    batches = again_and_again([rows[i : i + ROWS] for i in range(0, len(rows) - ROWS + 1, ROWS)])

    def make(batch: list[list[Example]]) -> Any:
        made = converter.batch(segments_from_rows(batch), ROWS)
        return {name: array[None] for name, array in made.items() if name != TASK}

    first = {name: array[0] for name, array in make(next(batches)).items()}
    state = create_state(make_init(learner, first, 0), mesh)
    step = jax.jit(functools.partial(train_step, learner), donate_argnums=0)

    def update() -> int:
        nonlocal state
        batch = next(batches)
        with jax.set_mesh(mesh):
            state, _ = step(state, place_batch(make(batch), mesh, leading=1))
        jax.block_until_ready(state.step)
        return sum(len(e.source) + len(e.target) + 4 for row in batch for e in row)

    return update


def _bindings() -> list[str]:
    return [
        f"Model.stage_layers=({LAYERS}, {LAYERS})",
        f"Model.embed={EMBED}",
        f"Model.mlp={4 * EMBED}",
        f"Model.heads={HEADS}",
        f"Model.dropout={DROPOUT}",
        "Model.attention_dropout=0.0",
        f"Optimizer.label_smoothing={SMOOTHING}",
        f"Data.source_length={LENGTH}",
        f"Data.target_length={LENGTH}",
        "Data.max_segments=16",
        "Data.instruction='5'",
    ]


def transformers(pairs: Pairs) -> Update:
    """Returns an update of Hugging Face's model on padded batches."""
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    torch.set_num_threads(1)
    torch.manual_seed(0)
    names: dict[str, Any] = {"vocab_size": VOCAB, "d_model": EMBED, "dropout": DROPOUT}
    for side in ("encoder", "decoder"):
        sizes = {"layers": LAYERS, "ffn_dim": 4 * EMBED, "attention_heads": HEADS, "layerdrop": 0.0}
        names |= {f"{side}_{name}": size for name, size in sizes.items()}
    names |= {"attention_dropout": 0.0, "activation_dropout": 0.0}
    model = M2M100ForConditionalGeneration(M2M100Config(**names)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = again_and_again(_of_similar_lengths(pairs))

    def padded(sentences: list[np.ndarray], tag: int) -> torch.Tensor:
        rows = [torch.tensor([tag, *sentence, _EOS]) for sentence in sentences]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_PAD)

    def update() -> int:
        batch = next(batches)
        source, target = (padded([pair[side] for pair in batch], 4 + side) for side in range(2))
        begin = torch.full((len(batch), 1), _EOS)
        logits = model(
            input_ids=source,
            attention_mask=(source != _PAD).long(),
            decoder_input_ids=torch.cat([begin, target[:, :-1]], 1),
            use_cache=False,
        ).logits
        loss = torch.nn.functional.cross_entropy(
            logits.view(-1, VOCAB), target.view(-1), ignore_index=_PAD, label_smoothing=SMOOTHING
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return int((source != _PAD).sum() + (target != _PAD).sum())

    return update


def _of_similar_lengths(pairs: Pairs) -> list[Pairs]:
    batches: list[Pairs] = [[]]
    tokens = 0
    for pair in sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0]))):
        tokens += len(pair[1]) + 2
        if tokens > ROWS * LENGTH:
            batches.append([])
            tokens = len(pair[1]) + 2
        batches[-1].append(pair)
    return batches


if __name__ == "__main__":
    run_command(main)
