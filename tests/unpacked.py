"""The sentence pairs of a batch: the inverse of `Converter.batch`."""

from mnmt_jax.data.converter import PER_SEGMENT, Converter, Example, HostBatch


def unpack(converter: Converter, batch: HostBatch) -> list[list[Example]]:
    """Return the pairs of each row."""
    rows = batch["source_segment_ids"]
    return [
        [_example(converter, batch, row, number) for number in range(1, 1 + int(rows[row].max()))]
        for row in range(len(rows))
    ]


def _example(converter: Converter, batch: HostBatch, row: int, number: int) -> Example:
    source = batch["source_tokens"][row][batch["source_segment_ids"][row] == number]
    target = batch["target_tokens"][row][batch["target_segment_ids"][row] == number]
    source_lang, target_lang, task = (int(batch[name][row, number - 1]) for name in PER_SEGMENT)
    first = converter.instruction.source_extra - 1
    own = target[converter.instruction.target_extra :]
    return Example(source[first:-1], own, source_lang, target_lang, task)
