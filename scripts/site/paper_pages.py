"""Generated parts of the papers' pages: citation and idea, published tables, what is open."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mnmt_jax.pages.svg_points import point_chart
from mnmt_jax.papers.analyses import Analysis, analyses
from mnmt_jax.papers.experiments import Experiment, experiments, gin_files
from mnmt_jax.papers.figures import charts_of
from mnmt_jax.papers.listing import runnable_rows
from mnmt_jax.papers.reproduction import collect
from mnmt_jax.papers.tables import EMPTY, Column, Paper, Row, Table, number_text

_MANY_COLUMNS = 8
_NO_FACTS = ("corpus", "point", "compared_with")
_SPECIAL = re.compile(r"([\\`*_\[\]{}])")
_ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;"}


def paper_introduction(paper: Paper) -> str:
    """Return citation and idea of a paper."""
    authors = f"{', '.join(paper.authors)}. " if paper.authors else ""
    venue = f" {escape(paper.venue)}." if paper.venue else ""
    link = f" [{paper.url.removeprefix('https://')}]({paper.url})." if paper.url else ""
    citation = f"{escape(authors)}*{escape(paper.title)}*.{venue}{link}"
    return f"The paper: {citation}\n\n{escape(paper.idea)}\n"


def paper_tables(paper: Paper, root: str) -> str:
    """Return the list of a paper's tables, what is open, and every table.

    Args:
        paper: the paper.
        root: path of the repository relative to the page, which is in docs/, for links.
    """
    example = next(table for table in paper.tables.values() if runnable_rows(paper, table))
    parts = [
        "## Published tables\n",
        f"The tables are the files of [`mnmt_jax/papers/{paper.name}`]({root}/mnmt_jax/papers/"
        f"{paper.name}). {_commands(example, root)}\n",
        _table_list(paper),
        "## What is open\n",
        "No table was run on its corpus here.\n",
        _open_rows(paper),
        *(_table_section(paper, table, root) for table in paper.tables.values()),
    ]
    return "\n".join(parts)


def _commands(table: Table, root: str) -> str:
    name, docs = table.full_name, root.rpartition("/")[0] or "."
    return (
        f"`mnmt reproduce {name} --dry_run` prints the plan of a table, `mnmt reproduce {name} "
        f"--scale tiny` tries its steps on made text ([options]({docs}/reproduce.md))."
    )


def _table_list(paper: Paper) -> str:
    rows = [
        [
            _link(table).replace(" ", "&nbsp;"),
            escape(table.title),
            str(len(table.rows) or EMPTY),
            _runnable(paper, table),
            str(table.cells or EMPTY),
        ]
        for table in paper.tables.values()
    ]
    return _markdown(["table", "shows", "rows", "run", "numbers"], rows)


def _runnable(paper: Paper, table: Table) -> str:
    """Return how many rows and analyses of a table can be run."""
    rows, count = runnable_rows(paper, table), len(table.analyses)
    analyses = f"{count} {'analysis' if count == 1 else 'analyses'}" if count else ""
    return ", ".join(filter(None, (str(rows or ""), analyses))) or EMPTY


def _link(table: Table) -> str:
    return f"[{table.number}](#{table.name})"


def _open_rows(paper: Paper) -> str:
    """Return a table of the reasons why rows or whole tables cannot be run."""
    places: dict[str, dict[str, list[str]]] = {}
    for table in paper.tables.values():
        link = _link(table)
        for row in table.rows:
            if row.unavailable:
                places.setdefault(row.unavailable, {}).setdefault(link, []).append(row.name)
        if not table.rows and not table.analyses:
            places.setdefault(table.no_numbers, {})[link] = []
    rows = [
        [escape(reason), "; ".join(_place(link, names) for link, names in where.items())]
        for reason, where in places.items()
    ]
    return _markdown(["not run here because", "tables and rows"], rows) if rows else ""


def _place(link: str, names: Sequence[str]) -> str:
    return f"{link}: {escape(', '.join(names))}" if names else link


def _table_section(paper: Paper, table: Table, root: str) -> str:
    parts = [f"## {table.number}: {escape(table.title)} {{ #{table.name} }}\n"]
    parts.append(f"{_source(table)} {escape(_sentence(table.no_numbers))}".strip())
    if runnable_rows(paper, table) or table.analyses:
        command = f"mnmt reproduce {table.full_name} --data data --output runs/papers"
        parts.append(f"\n```text\n{command}\n```")
    if table.cells or _facts(table):
        parts.append(f'\n<div class="published" markdown>\n\n{_numbers(table)}\n</div>')
    if drawings := _charts(paper, table):
        parts.append("\nPoints with numbers that the paper prints:\n")
        parts.append(f'<div class="charts">{drawings}</div>')
    if settings := _settings(paper, table, root):
        parts.append(_collapsed("How the rows are run", settings, is_open=not table.cells))
    if table.analyses:
        lines = (_analysis(paper, analysis, root) for analysis in analyses(paper, table))
        parts.append(_collapsed("Analyses", "\n".join(lines), is_open=not table.cells))
    if table.notes:
        notes = "\n".join(f"- {escape(note)}" for note in table.notes)
        parts.append(_collapsed("Notes on the printed table", notes, is_open=not table.rows))
    return "\n".join(parts) + "\n"


def _source(table: Table) -> str:
    """Return where a table is discussed, its kind and corpus, as a sentence."""
    section = table.section
    if section[:1].isdigit():
        section = f"Section {section}"
    elif len(section) == 1:
        section = f"Appendix {section}"
    corpus = f"corpus `{table.corpus}`" if table.corpus else ""
    parts = filter(None, (section, table.kind.replace("_", "-"), corpus))
    return _sentence("; ".join(parts))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _numbers(table: Table) -> str:
    """Return the printed numbers and facts, a table for every block."""
    numbers = {row.name: number for number, row in enumerate(table.rows, 1)}
    facts = _facts(table)
    blocks = (_block(rows, columns, facts, numbers) for rows, columns in _blocks(table))
    return "\n".join(blocks)


def _block(
    rows: Sequence[Row], columns: Sequence[Column], facts: Sequence[str], numbers: Mapping[str, int]
) -> str:
    """Return a table of numbers; with many columns and few rows, a row per column."""
    header = ["row", *(name.replace("_", " ") for name in facts)]
    header += [escape(column.title) for column in columns]
    lines = [
        [
            f"{numbers[row.name]}. {escape(row.name)}",
            *(_fact(row.facts.get(name)) for name in facts),
            *(number_text(row.published.get(column.key)) for column in columns),
        ]
        for row in rows
    ]
    if len(columns) > max(_MANY_COLUMNS, 2 * len(lines)):
        header, *lines = map(list, zip(["column", *header[1:]], *lines, strict=True))
    return _markdown(header, lines, numbers_from=1 + len(facts))


def _blocks(table: Table) -> list[tuple[list[Row], list[Column]]]:
    """Divide a table into blocks whose rows have numbers in no common column, e.g. by corpus.

    Rows without numbers are in the block of the row above; the first ones in the first block.
    """
    blocks: list[tuple[list[Row], set[str]]] = []
    for row in table.rows:
        keys = set(row.published)
        common = [block for block in blocks if keys & block[1] or not block[1]]
        common = common if keys else blocks[-1:]
        rows = [other for block in common for other in block[0]]
        merged = ([*rows, row], keys.union(*(block[1] for block in common)))
        blocks = [*(block for block in blocks if block not in common), merged]
    if len(blocks) < 2:
        return [(list(table.rows), list(table.columns))]
    order = {row.name: number for number, row in enumerate(table.rows)}
    return [
        (
            sorted(rows, key=lambda row: order[row.name]),
            [column for column in table.columns if column.key in keys],
        )
        for rows, keys in blocks
    ]


def _charts(paper: Paper, table: Table) -> str:
    """Return the charts of a figure as inline SVG, if the paper prints several of their points."""
    published = collect(table, (), Path())
    drawings = (
        point_chart(
            chart.title or table.title,
            [dataclasses.replace(series, joined=False) for series in chart.series],
            x_title=chart.x_title,
            y_title=chart.y_title,
            logarithmic=chart.logarithmic,
        )
        for chart in charts_of(paper, published)
        if any(len(series.published) > 1 for series in chart.series)
    )
    return "".join(map(str, drawings))


def _facts(table: Table) -> list[str]:
    """Return the names of the facts of rows, e.g. languages, in a table without models."""
    names = dict.fromkeys(name for row in table.rows for name in row.facts)
    names = {name: None for name in names if name not in _NO_FACTS}
    return [] if {"model", "pretrained"}.intersection(names) else list(names)


def _fact(value: object) -> str:
    if isinstance(value, list):
        return escape(", ".join(map(str, value)))
    return EMPTY if value is None else escape(str(value))


def _settings(paper: Paper, table: Table, root: str) -> str:
    """Return a table of the gin files and changes of every row, or why it is not run."""
    if not any(row.unavailable or experiments(paper, table, row) for row in table.rows):
        return ""
    rows = [
        [f"{number}. {escape(row.name)}", *_row_settings(paper, table, row, root)]
        for number, row in enumerate(table.rows, 1)
    ]
    return _markdown(["row", "gin files", "changes"], rows)


def _row_settings(paper: Paper, table: Table, row: Row, root: str) -> tuple[str, str]:
    if row.unavailable:
        facts = {} if _facts(table) else {**row.facts}
        if "prompt" in facts:
            facts["prompt"] = paper.prompts[facts["prompt"]]
        cells = (f"{name}: {_fact(value)}" for name, value in facts.items())
        return f"not run: {escape(row.unavailable)}", "<br>".join(cells) or EMPTY
    runs = experiments(paper, table, row)
    if not runs:
        return EMPTY, EMPTY
    files = dict.fromkeys(_files(paper, run, root) for run in runs.values())
    changes = dict.fromkeys(change for run in runs.values() for change in _changes(run))
    return "<br>".join(files), "<br>".join(changes) or EMPTY


def _files(paper: Paper, run: Experiment, root: str) -> str:
    if run.pretrained:
        return f"none: `mnmt import {paper.imports[run.model].strip()}`"
    return ", ".join(f"[{_stem(file)}]({root}/{file})" for file in gin_files(run))


def _stem(file: str) -> str:
    return file.rpartition("/")[2].removesuffix(".gin")


def _changes(run: Experiment) -> Iterable[str]:
    yield from (f"`{binding}`" for binding in run.training_bindings)
    for source in run.sources:
        name = f"{source.name}: " if source.name else ""
        yield f"starts from {name}{source.model}{f' on {source.corpus}' if source.corpus else ''}"
    if run.teacher:
        flags = f" (`{' '.join(run.distill)}`)" if run.distill else ""
        yield f"trained on translations by {run.teacher.model}{flags}"
    if run.back_translation_rounds:
        yield f"{run.back_translation_rounds} rounds of back-translation"
    yield from (f"decoding: `{binding}`" for binding in run.decode)
    if run.benchmark:
        yield f"timed: `mnmt benchmark {' '.join(run.benchmark)}`"
    if run.evaluate:
        yield f"evaluation: `{' '.join(run.evaluate)}`"
    if run.evaluated:
        yield f"evaluated on {run.evaluated}"


def _analysis(paper: Paper, analysis: Analysis, root: str) -> str:
    runs = "; ".join(
        f"{escape(name)}: {_files(paper, run, root)}" for name, run in analysis.runs.items()
    )
    return f"- {escape(analysis.name)}: `mnmt analyse {' '.join(analysis.command)}`, of {runs}"


def _collapsed(title: str, text: str, *, is_open: bool) -> str:
    indented = "\n".join(f"    {line}" if line else "" for line in text.splitlines())
    return f'\n???{"+" if is_open else ""} note "{title}"\n\n{indented}'


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 0) -> str:
    """Return a Markdown table whose cells are Markdown; numbers are right-aligned."""
    rule = [
        "---:" if numbers_from and column >= numbers_from else "---"
        for column in range(len(header))
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)) + "\n"


def escape(text: str) -> str:
    """Return plain text as Markdown."""
    escaped = _SPECIAL.sub(r"\\\1", text)
    for character, entity in _ENTITIES.items():
        escaped = escaped.replace(character, entity)
    return escaped
