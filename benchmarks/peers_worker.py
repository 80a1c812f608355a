"""One engine of `peers.py`: reads what is asked, a line of JSON each, and answers with a line.

python benchmarks/peers_worker.py ENGINE FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines import peak_kib

Found = list[list[str]]
_BATCH = 32  # lines; those of similar length together, as ours are
_ENDS = (1, 2)  # padding and the end, in the rows of Hugging Face's table


def main() -> None:
    """Loads an engine and translates whenever asked."""
    engine, folder = sys.argv[1], Path(sys.argv[2])
    given = json.loads((folder / "input.json").read_text(encoding="utf-8"))
    kind, _, precision = engine.partition(" ")
    load: dict[str, Callable[..., Callable[..., Found]]] = {
        "ours": ours,
        "transformers": transformers,
        "ctranslate2": ctranslate2,
    }
    translate = load[kind](folder, given, precision)
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.process_time()
        found = translate(**asked)
        seconds = time.process_time() - start
        told = {"seconds": seconds, "memory": peak_kib(), "found": found}
        print(json.dumps(told), flush=True)


def ours(folder: Path, given: dict[str, Any], precision: str) -> Callable[..., Found]:
    """Returns our translator, which cuts its text itself."""
    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.interop.token_table import rows_of_vocabulary

    weights = [f"Decode.weights='{precision}'"] if precision else []
    translator = Translator.load(folder / "run", bindings=weights)
    rows = rows_of_vocabulary(translator.vocabulary, tags_last=False)
    source, target = given["languages"]

    def translate(beam: int, steps: int, exactly: bool) -> Found:
        del exactly
        found = translator.translate_nbest(
            given["texts"], source=source, target=target, beam_size=beam, max_length=steps
        )
        return [[given["names"][rows[i]] for i in f.hypotheses[0].tokens[:-1]] for f in found]

    return translate


def transformers(folder: Path, given: dict[str, Any], precision: str) -> Callable[..., Found]:
    """Returns Hugging Face's model."""
    del precision
    import torch
    from transformers import M2M100ForConditionalGeneration

    torch.set_num_threads(1)
    model = M2M100ForConditionalGeneration.from_pretrained(folder / "hf").eval()
    lines = given["ids"]

    def translate(beam: int, steps: int, exactly: bool) -> Found:
        found: Found = [[] for _ in lines]
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        for start in range(0, len(lines), _BATCH):
            rows = order[start : start + _BATCH]
            width = max(len(lines[i]) for i in rows)
            padded = torch.tensor([lines[i] + [1] * (width - len(lines[i])) for i in rows])
            with torch.inference_mode():
                made = model.generate(
                    input_ids=padded,
                    attention_mask=(padded != 1).long(),
                    forced_bos_token_id=given["target"],
                    num_beams=beam,
                    do_sample=False,
                    length_penalty=1.0,
                    max_new_tokens=steps + 1,
                    min_new_tokens=steps + 1 if exactly else None,
                )
            for i, ids in zip(rows, made[:, 2:].tolist(), strict=True):
                found[i] = [given["names"][token] for token in ids if token not in _ENDS]
        return found

    return translate


def ctranslate2(folder: Path, given: dict[str, Any], precision: str) -> Callable[..., Found]:
    """Returns CTranslate2's translator."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / "ct2"), compute_type=precision, inter_threads=1, intra_threads=1
    )
    prefix = [[given["names"][given["target"]]]] * len(given["tokens"])

    def translate(beam: int, steps: int, exactly: bool) -> Found:
        found = translator.translate_batch(
            given["tokens"],
            target_prefix=prefix,
            beam_size=beam,
            length_penalty=1.0,
            max_batch_size=_BATCH,
            batch_type="examples",
            max_decoding_length=steps + 1,
            min_decoding_length=steps + 1 if exactly else 1,
        )
        return [each.hypotheses[0][1:] for each in found]

    return translate


if __name__ == "__main__":
    main()
