"""Terminal output about published tables: lists and numbers."""

from __future__ import annotations

from collections.abc import Iterable

from mnmt_jax.pages.markdown_tables import markdown_table
from mnmt_jax.papers.counts import counted_splits
from mnmt_jax.papers.experiments import experiments
from mnmt_jax.papers.tables import Paper, Table, find_paper, number_text


def list_papers(papers: Iterable[Paper]) -> str:
    """Return a table of the tables and figures of some papers."""
    header = ["table", "number", "shows", "rows", "run here", "analyses", "numbers"]
    sections = []
    for paper in papers:
        rows = [
            [
                table.full_name,
                table.number,
                table.title,
                str(len(table.rows)),
                str(runnable_rows(paper, table)),
                str(len(table.analyses)),
                str(table.cells),
            ]
            for table in paper.tables.values()
        ]
        sections.append(f"{paper.title}\n\n{markdown_table(header, rows)}")
    return "\n".join(sections)


def runnable_rows(paper: Paper, table: Table) -> int:
    """Return the number of rows that `mnmt reproduce` can run, or count in a table of data."""
    counted = bool(counted_splits(paper, table))
    return sum(
        counted
        and bool(row.published)
        and not row.unavailable
        or bool(experiments(paper, table, row))
        for row in table.rows
    )


def show_table(table: Table) -> str:
    """Return the published numbers of a table, with the notes on them."""
    header = ["row", "system", *(column.title for column in table.columns)]
    rows = [
        [
            str(number),
            row.name,
            *(number_text(row.published.get(column.key)) for column in table.columns),
        ]
        for number, row in enumerate(table.rows, start=1)
    ]
    lines = [f"{table.number}: {table.caption}", ""]
    lines += [markdown_table(header, rows)] if rows else []
    lines += [f"{table.no_numbers}\n"] if table.no_numbers else []
    lines += [
        f"not run here: {row.name}: {row.unavailable}" for row in table.rows if row.unavailable
    ]
    lines += [
        f"prompt of {row.name}: {find_paper(table.paper).prompts[row.facts['prompt']]}"
        for row in table.rows
        if "prompt" in row.facts
    ]
    lines += [f"analysis {item['name']}: mnmt analyse {item['command']}" for item in table.analyses]
    return "\n".join([*lines, *(f"note: {note}" for note in table.notes)])
