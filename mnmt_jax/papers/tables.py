"""Published tables: their files, columns, rows and printed numbers.

`mnmt_jax/papers/PAPER/TABLE.toml` is one table or figure of a paper; `paper.toml` beside it
describes the paper and the corpora of its tables. A file lists the columns once; every row has as
many cells in `published`, in the same order, `"-"` where the paper has none.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mnmt_jax.errors import UserError, join_names, suggest
from mnmt_jax.files.toml_files import read_toml

FOLDER = Path(__file__).parent
KINDS = ("results", "ablation", "sweep", "fine_tuning", "cost", "data", "analysis")
NO_CELL = "-"
EMPTY = "–"
"""Shown where there is no number."""
Number = Decimal | int

# Name of a metric in keys of columns -> whether higher values are better; None if neither is.
METRICS: Mapping[str, bool | None] = MappingProxyType(
    {
        "bleu": True,
        "spbleu": True,
        "chrf": True,
        "exact": True,
        "comet": True,
        "bert_score": True,
        "bleu_gain": True,
        "bleu_change": True,
        "off_target": False,
        "off_target_nearest": False,
        "nll": False,
        "perplexity": False,
        "variance": False,
        "seconds": False,
        "seconds_per_token": False,
        "relative_time": False,
        "entropy": True,
        "parameters": None,
        "sentences": None,
        "sentences_min": None,
        "sentences_max": None,
        "directions": None,
        "tokens": None,
        "share": None,
        "top1_attention": None,
        "top2_attention": None,
        "top2_distance": None,
    }
)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a published table.

    Attributes:
        key: `GROUP.METRIC`, or `CORPUS.GROUP.METRIC` in a table of several corpora.
        title: title of the column.
    """

    key: str
    title: str

    @property
    def metric(self) -> str:
        """Name of the metric, a key of `METRICS`."""
        return self.key.rpartition(".")[2]

    @property
    def group(self) -> str:
        """Group of directions, languages or tokens that the cells average over."""
        return self.key.split(".")[-2]

    @property
    def corpus(self) -> str:
        """The corpus; empty in a table of one."""
        return self.key.rpartition(f".{self.group}.")[0] if self.key.count(".") > 1 else ""

    @property
    def higher_is_better(self) -> bool | None:
        """Orientation of the metric; None if it has none."""
        return METRICS[self.metric]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a published table: a system, or a language or corpus in a table of data.

    Attributes:
        name: unique name in the table.
        published: key of a column -> the number as printed.
        unavailable: why the row cannot be run; empty if it can.
        facts: all other fields of the file: configuration of the system, or facts of a language.
    """

    name: str
    published: Mapping[str, Number]
    unavailable: str
    facts: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Table:
    """A published table or data figure.

    Attributes:
        paper: name of the paper's folder.
        name: name of the file, e.g. `table1`.
        number: as printed, e.g. `Table 1`.
        title: what it shows.
        section: section that discusses it; empty for a table of ours.
        kind: one of `KINDS`.
        no_numbers: why it has no numbers; empty if it has.
        corpus: corpus of columns and rows that name none; empty if they do.
        seeds: seeds of its rows; empty for those of their corpora.
        notes: what is garbled, contradictory or doubtful in the paper's text.
        columns: columns in the printed order.
        rows: rows in the printed order.
        analyses: entries of `mnmt_jax.papers.analyses`, as in the file.
        figure: axes of its charts (`mnmt_jax.papers.figures`); empty for a table.
        benchmark: flags of `mnmt benchmark`, if its rows are timed and not scored; else empty.
    """

    paper: str
    name: str
    number: str
    title: str
    section: str
    kind: str
    no_numbers: str
    corpus: str
    seeds: tuple[int, ...]
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    analyses: tuple[Mapping[str, Any], ...] = ()
    figure: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    benchmark: str = ""

    @property
    def full_name(self) -> str:
        """Name with that of its paper, `PAPER/TABLE`."""
        return f"{self.paper}/{self.name}"

    @property
    def caption(self) -> str:
        """Title, and the section that discusses it."""
        return f"{self.title} (section {self.section})" if self.section else self.title

    @property
    def cells(self) -> int:
        """Number of published numbers."""
        return sum(len(row.published) for row in self.rows)


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes:
        name: name of its folder.
        title: title.
        idea: three sentences.
        authors: authors; empty if the text does not state them.
        venue: where it was published; empty if unknown.
        url: address of a public version; empty if unknown.
        corpora: what the rows of a corpus share, by corpus (`mnmt_jax.papers.experiments`).
        imports: flags of `mnmt import` for released models, by name.
        defaults: values for what a corpus does not set.
        prompts: prompts of language models, by the name that a row's `prompt` has.
        tables: its tables and figures, by name, tables first.
    """

    name: str
    title: str
    idea: str
    authors: tuple[str, ...]
    venue: str
    url: str
    corpora: Mapping[str, Mapping[str, Any]]
    imports: Mapping[str, str]
    defaults: Mapping[str, Any]
    tables: Mapping[str, Table]
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)


@functools.cache
def load_papers(folder: Path = FOLDER) -> Mapping[str, Paper]:
    """Load all papers of a folder, by name.

    Raises:
        UserError: naming the file and field that is wrong.
    """
    return {path.parent.name: _load_paper(path) for path in sorted(folder.glob("*/paper.toml"))}


def find_paper(name: str) -> Paper:
    """Return a paper by the name of its folder.

    Raises:
        UserError: if there is no such paper.
    """
    papers = load_papers()
    if name not in papers:
        hint = suggest(name, tuple(papers))
        raise UserError(f"no paper '{name}'; {hint}there are {join_names(list(papers))}")
    return papers[name]


def find_table(name: str) -> Table:
    """Return a table by `PAPER/TABLE`.

    Raises:
        UserError: if there is no such paper or table.
    """
    paper_name, _, table = name.partition("/")
    paper = find_paper(paper_name)
    if not table:
        raise UserError(
            f"{name}: name a table, e.g. {paper.name}/{next(iter(paper.tables))}; 'mnmt papers "
            f"{paper.name}' lists them"
        )
    if table not in paper.tables:
        hint, names = suggest(table, tuple(paper.tables)), join_names(list(paper.tables))
        raise UserError(f"{paper.name} has no table '{table}'; {hint}it has {names}")
    return paper.tables[table]


def number_text(value: Number | None) -> str:
    """Return a number as printed, with thousands separators; a dash for None."""
    return EMPTY if value is None else f"{value:,}"


def _load_paper(path: Path) -> Paper:
    fields = read_toml(path, parse_float=Decimal)
    tables = [load_table(file) for file in path.parent.glob("*.toml") if file != path]
    ordered = sorted(tables, key=_order)
    return Paper(
        name=path.parent.name,
        title=_text(path, fields, "title"),
        idea=" ".join(_text(path, fields, "idea").split()),
        authors=tuple(fields.get("authors", ())),
        venue=fields.get("venue", ""),
        url=fields.get("url", ""),
        corpora=fields.get("corpora", {}),
        imports=fields.get("imports", {}),
        defaults=fields.get("defaults", {}),
        tables={table.name: table for table in ordered},
        prompts={name: " ".join(text.split()) for name, text in fields.get("prompts", {}).items()},
    )


def load_table(path: Path) -> Table:
    """Load the file of a table.

    Raises:
        UserError: naming the file and field that is wrong.
    """
    fields = read_toml(path, parse_float=Decimal)
    kind = _text(path, fields, "kind")
    if kind not in KINDS:
        raise UserError(f"{path}: kind '{kind}'; choose one of {join_names(KINDS)}")
    columns = tuple(Column(item["key"], item["title"]) for item in fields.get("columns", ()))
    for column in columns:
        if column.metric not in METRICS:
            hint = suggest(column.metric, tuple(METRICS))
            raise UserError(f"{path}: column '{column.key}' has an unknown metric; {hint}")
    keys = [column.key for column in columns]
    if len(set(keys)) < len(keys):
        raise UserError(f"{path}: two columns have one key")
    rows = tuple(_row(path, item, keys) for item in fields.get("rows", ()))
    names = [row.name for row in rows]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UserError(f"{path}: two rows are called '{min(repeated)}'")
    return Table(
        paper=path.parent.name,
        name=path.stem,
        number=_text(path, fields, "number"),
        title=_text(path, fields, "title"),
        section=fields.get("section", ""),
        kind=kind,
        no_numbers=fields.get("no_numbers", ""),
        corpus=fields.get("corpus", ""),
        seeds=parse_seeds(str(path), fields.get("seeds", [])),
        notes=tuple(" ".join(note.split()) for note in fields.get("notes", ())),
        columns=columns,
        rows=rows,
        analyses=tuple(fields.get("analyses", ())),
        figure=fields.get("figure", {}),
        benchmark=fields.get("benchmark", ""),
    )


def parse_seeds(place: str, seeds: Any) -> tuple[int, ...]:
    """Return the seeds of a file.

    Raises:
        UserError: naming the file, unless they are different numbers in a list.
    """
    numbers = seeds if isinstance(seeds, list) else []
    if numbers != seeds or any(type(seed) is not int or seed < 0 for seed in numbers):
        raise UserError(f"{place}: seeds: {seeds!r} is not a list of numbers; write seeds = [1, 2]")
    if len(set(numbers)) < len(numbers):
        raise UserError(f"{place}: seeds: {seeds!r} lists a seed twice")
    return tuple(numbers)


def _row(path: Path, fields: dict[str, Any], keys: Sequence[str]) -> Row:
    name = _text(path, fields, "name")
    cells = fields.pop("published", [NO_CELL] * len(keys))
    if len(cells) != len(keys):
        raise UserError(f"{path}: row '{name}' has {len(cells)} cells for {len(keys)} columns")
    published = {key: cell for key, cell in zip(keys, cells, strict=True) if cell != NO_CELL}
    for key, cell in published.items():
        if isinstance(cell, bool) or not isinstance(cell, int | Decimal):
            raise UserError(f"{path}: row '{name}', column '{key}': {cell!r} is not a number")
    facts = {key: value for key, value in fields.items() if key not in ("name", "unavailable")}
    return Row(name, published, fields.get("unavailable", ""), facts)


def _text(path: Path, fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise UserError(f"{path}: '{name}' is missing or not text")
    return value


def _order(table: Table) -> tuple[bool, int]:
    """Order tables before figures, each by number."""
    return not table.name.startswith("table"), int(table.number.split()[-1])
