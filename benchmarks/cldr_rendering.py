"""Throughput of CLDR text generation on one core, in lines per second for MITRE's 24 languages.

python benchmarks/cldr_rendering.py [--meanings 20000] [--inventory small]
"""

import argparse
import json
import time


def main() -> None:
    """Print loading time and lines per second, with and without drawing the meanings, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--meanings", type=int, default=20_000)
    parser.add_argument("--inventory", default="large", choices=("small", "large"))
    arguments = parser.parse_args()

    start = time.perf_counter()
    from mnmt_jax.data.cldr import CldrCorpus
    from mnmt_jax.vocabulary.languages import MITRE_LANGUAGES

    corpus = CldrCorpus(MITRE_LANGUAGES, inventory=arguments.inventory)
    loaded = time.perf_counter()
    meanings = corpus.meanings("train", arguments.meanings)
    drawn = time.perf_counter()
    lines = sum(
        1 for meaning in meanings for code in MITRE_LANGUAGES if corpus.render(meaning, code)
    )
    rendered = time.perf_counter()
    print(
        json.dumps(
            {
                "inventory": arguments.inventory,
                "load_seconds": round(loaded - start, 3),
                "meanings": len(meanings),
                "distinct_meanings": len(set(meanings)),
                "lines": lines,
                "rendered_lines_per_second": round(lines / (rendered - drawn)),
                "drawn_and_rendered_lines_per_second": round(lines / (rendered - loaded)),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
