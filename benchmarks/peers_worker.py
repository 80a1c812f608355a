"""Worker of `peers.py`: one engine that translates for each request, as lines of JSON.

python benchmarks/peers_worker.py ENGINE FOLDER DEVICE BATCH
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines import alone, peak_kib

Translations = list[list[str]]
# Translates, and returns the peak memory of a GPU in bytes.
Engine = tuple[Callable[..., Translations], Callable[[], int]]
_ENDS = (1, 2)  # ids of padding and eos in Hugging Face's vocabulary


def main() -> None:
    """Load an engine and answer requests."""
    engine, folder, device, batch = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    clock = time.process_time if device == "cpu" else time.perf_counter
    input_data = json.loads((folder / "input.json").read_text(encoding="utf-8"))
    kind, _, precision = engine.partition(" ")
    load: dict[str, Callable[..., Engine]] = {
        "ours": ours,
        "transformers": transformers,
        "ctranslate2": ctranslate2,
    }
    translate, device_memory = load[kind](folder, input_data, precision, device, batch)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        with alone() if number else contextlib.nullcontext():
            start = clock()
            translations = translate(**request)
            seconds = clock() - start
        memory = 1024 * peak_kib() if device == "cpu" else device_memory()
        answer = {"seconds": seconds, "memory": memory, "translations": translations}
        print(json.dumps(answer), flush=True)


def ours(
    folder: Path, input_data: dict[str, Any], precision: str, device: str, batch: int
) -> Engine:
    """Return our translator, which includes the tokenization of the text."""
    import jax

    from mnmt_jax.decoding.translator import Translator
    from mnmt_jax.interop.token_table import rows_of_vocabulary

    bindings = [f"Decode.weights='{precision}'"] if precision else []
    if device == "gpu":
        bindings.append(f"Decode.batch={batch}")
    translator = Translator.load(folder / "run", bindings=bindings)
    rows = rows_of_vocabulary(translator.vocabulary, tags_last=False)
    source, target = input_data["languages"]

    def translate(beam: int, steps: int, exactly: bool) -> Translations:
        del exactly
        results = translator.translate_nbest(
            input_data["texts"], source=source, target=target, beam_size=beam, max_length=steps
        )
        return [
            [input_data["names"][rows[i]] for i in result.hypotheses[0].tokens[:-1]]
            for result in results
        ]

    return translate, lambda: jax.devices()[0].memory_stats()["peak_bytes_in_use"]


def transformers(
    folder: Path, input_data: dict[str, Any], precision: str, device: str, batch: int
) -> Engine:
    """Return Hugging Face's model as a translator, with lines of similar length in a batch."""
    del precision
    import torch
    from transformers import M2M100ForConditionalGeneration

    place: dict[str, Any] = {"device": "cpu"}
    if device == "gpu":
        place = {"device": "cuda", "dtype": torch.bfloat16}
    else:
        torch.set_num_threads(1)
    model = M2M100ForConditionalGeneration.from_pretrained(folder / "hf").eval().to(**place)
    lines = input_data["ids"]

    def translate(beam: int, steps: int, exactly: bool) -> Translations:
        translations: Translations = [[] for _ in lines]
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        for start in range(0, len(lines), batch):
            rows = order[start : start + batch]
            width = max(len(lines[i]) for i in rows)
            padded = torch.tensor(
                [lines[i] + [1] * (width - len(lines[i])) for i in rows], device=place["device"]
            )
            with torch.inference_mode():
                generated = model.generate(
                    input_ids=padded,
                    attention_mask=(padded != 1).long(),
                    forced_bos_token_id=input_data["target"],
                    num_beams=beam,
                    do_sample=False,
                    length_penalty=1.0,
                    max_new_tokens=steps + 1,
                    min_new_tokens=steps + 1 if exactly else None,
                )
            for i, ids in zip(rows, generated[:, 2:].tolist(), strict=True):
                translations[i] = [
                    input_data["names"][token] for token in ids if token not in _ENDS
                ]
        return translations

    return translate, torch.cuda.max_memory_allocated


def ctranslate2(
    folder: Path, input_data: dict[str, Any], precision: str, device: str, batch: int
) -> Engine:
    """Return CTranslate2's translator."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / "ct2"),
        device=device.replace("gpu", "cuda"),
        compute_type=precision,
        inter_threads=1,
        intra_threads=1,
    )
    prefix = [[input_data["names"][input_data["target"]]]] * len(input_data["tokens"])

    def translate(beam: int, steps: int, exactly: bool) -> Translations:
        results = translator.translate_batch(
            input_data["tokens"],
            target_prefix=prefix,
            beam_size=beam,
            length_penalty=1.0,
            max_batch_size=batch,
            batch_type="examples",
            max_decoding_length=steps + 1,
            min_decoding_length=steps + 1 if exactly else 1,
        )
        return [result.hypotheses[0][1:] for result in results]

    return translate, lambda: 0


if __name__ == "__main__":
    main()
