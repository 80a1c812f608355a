"""MkDocs hook: generates the start page, the reference, the papers' tables, source listings."""

from __future__ import annotations

import ast
import json
import logging
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mnmt_jax"
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(\]\()([^)#\s]*)(#[^)\s]*)?(\))")
LANGUAGES = {".py": "python", ".sh": "bash", ".gin": "python"}
log = logging.getLogger("mkdocs.plugins.site_hook")


def on_config(config: Any) -> Any:
    """Add a page for every room (subpackage) to the navigation."""
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "site")]
    pages = [{room: f"reference/api/{room}.md"} for room in rooms()]
    for section in config.nav:
        section.get("Reference", []).append({"Python API": pages})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages; warn of undocumented names, which fails a strict build."""
    generated = {page: (ROOT / name).read_text("utf-8") for name, page in MOVED.items()}
    generated |= {f"reference/api/{room}.md": api_page(room) for room in rooms()}
    generated |= {
        "reference/commands.md": commands_page(),
        "reference/gin.md": gin_page(),
        "reference/masks.md": masks_page(),
    }
    generated["tour.md"] = notebook_page(ROOT / "docs" / "tour.ipynb")
    texts = {
        file.src_uri: fill_in(file.src_uri, file.content_string)
        for file in files.documentation_pages()
    }
    for page, text in (texts | generated).items():
        for target in linked_files(page, text):
            generated[f"source/{target}.md"] = source_page(target)
    for page, text in generated.items():
        files.append(File.generated(config, page, content=text))
    for name in undocumented_names(PACKAGE):
        log.warning("%s has no docstring", name)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the generated parts, and replace links to files outside docs/ by their listings."""
    uri = page.file.src_uri
    return markdown if uri.startswith("source/") else _relink(uri, fill_in(uri, markdown))


def fill_in(page: str, text: str) -> str:
    """Replace `<!-- mask: LAYOUT -->`, `<!-- paper: NAME -->` and `<!-- tables: NAME -->`."""
    root = posixpath.relpath(".", posixpath.join("docs", posixpath.dirname(page)))

    def replaced(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "mask":
            return mask_drawing(name)
        from paper_pages import paper_introduction, paper_tables

        from mnmt_jax.papers.tables import find_paper

        paper = find_paper(name)
        return paper_introduction(paper) if kind == "paper" else paper_tables(paper, root)

    return re.sub(r"<!-- (mask|paper|tables): (\w+) -->", replaced, text)


def rooms() -> list[str]:
    """Return the names of the rooms and top-level modules of the package."""
    folders = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
    return sorted([*folders, *(p.stem for p in PACKAGE.glob("*.py") if p.stem[0] != "_")])


def modules(room: str) -> list[str]:
    """Return the dotted names of a room's public modules, the package itself first."""
    if not (PACKAGE / room).is_dir():
        return [f"mnmt_jax.{room}"]
    paths = sorted((PACKAGE / room).rglob("*.py"))
    names = (path.relative_to(ROOT).with_suffix("").parts for path in paths)
    return sorted(".".join(n[:-1] if n[-1] == "__init__" else n) for n in names)


def api_page(room: str) -> str:
    """Return the page with the docstrings of a room."""
    listing = (
        f"::: {module}\n    options: {{show_submodules: false}}\n" for module in modules(room)
    )
    return f"# {room}\n\n" + "\n".join(listing)


def undocumented_names(package: Path) -> list[str]:
    """Return the public modules, classes, functions and methods without a docstring."""
    names = []
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        module = str(path.relative_to(package.parent))
        names += [module] if not ast.get_docstring(tree) else []
        names += [f"{module}: {name}" for name in _undocumented(tree)]
    return names


def _undocumented(scope: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node) and not _is_overload(node):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _undocumented(node, f"{node.name}.")


def _is_overload(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)


def commands_page() -> str:
    """Return every command with its description and options, from the argparse parsers."""
    from mnmt_jax.commands.mnmt import COMMANDS, module_of

    parts = ["# Commands\n\nEvery command is `mnmt COMMAND`; `mnmt --help` lists them.\n"]
    for name, summary in COMMANDS.items():
        parser = module_of(name).make_parser()
        parser.prog = f"mnmt {name}"
        os.environ["COLUMNS"] = "96"
        parts.append(f"## mnmt {name}\n\n{summary[0].upper()}{summary[1:]}.\n")
        parts.append(f"```text\n{parser.format_help()}```\n")
    return "\n".join(parts)


def gin_page() -> str:
    """Return every gin key with its type, range, default and meaning."""
    from mnmt_jax.commands.key_reference import all_sections

    parts = [
        "# Gin keys\n\nA value is set in a gin file or by `--gin.SECTION.KEY=VALUE`. "
        "`mnmt keys SECTION` prints the same.\n"
    ]
    return "\n".join([*parts, *map(_section_table, all_sections().values())])


def _section_table(section: type) -> str:
    from mnmt_jax.commands.key_reference import section_keys, section_summary

    rows = [f"## {section.__name__}\n\n{section_summary(section)}\n"]
    rows.append("| key | values | default | meaning |\n|---|---|---|---|")
    for key in section_keys(section):
        rows.append(_row(f"`{key.name}`", key.values, f"`{key.default}`", key.meaning))
    return "\n".join(rows) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def masks_page() -> str:
    """Return the drawn masks of tests/golden/masks."""
    names = sorted(path.stem for path in (ROOT / "tests/golden/masks").glob("*.txt"))
    head = (
        "# Masks\n\nWhich query (row) may see which key (column): S source, R register, G trigger, "
        "T target; the digit is the packed example, 0 is padding. One grid per stage, then one per "
        "cross-attention edge. Tests read the same pictures.\n"
    )
    return head + "".join(f"\n## {name}\n\n{mask_drawing(name)}\n" for name in names)


def mask_drawing(name: str) -> str:
    """Return a layout's masks as inline SVG, one grid per block of its file."""
    text = (ROOT / "tests/golden/masks" / f"{name}.txt").read_text("utf-8")
    return "\n".join(_grid(block.splitlines()) for block in text.strip().split("\n\n"))


def _grid(lines: list[str], cell: int = 20) -> str:
    title = lines.pop(0) if lines[0].startswith("memory") else ""
    columns, top = lines[0].split(), 40 if title else 22
    width, height = 34 + cell * len(columns), top + cell * (len(lines) - 1)
    shapes = [f'<text x="4" y="14">{title}</text>'] if title else []
    for number, label in enumerate(columns):
        shapes.append(f'<text x="{32 + number * cell}" y="{top - 6}">{label}</text>')
    for row, line in enumerate(lines[1:]):
        label, *marks = line.split()
        shapes.append(f'<text x="4" y="{top + row * cell + 14}">{label}</text>')
        for number, mark in enumerate(marks or ["."] * len(columns)):
            fill = "#3f6fb5" if mark == "1" else "none"
            x, y = 30 + number * cell, top + row * cell
            shapes.append(
                f'<rect x="{x}" y="{y}" width="18" height="18" rx="2" fill="{fill}" '
                'stroke="currentColor" stroke-opacity=".3"/>'
            )
    style = "max-width:100%;height:auto;margin:.5em 1em .5em 0"
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" style="{style}" '
        f'font-size="11" fill="currentColor" role="img">{"".join(shapes)}</svg>'
    )


def notebook_page(path: Path) -> str:
    """Return an executed notebook as a page: text, code and output."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            lines = output.get("text") or output.get("data", {}).get("text/plain", ())
            parts += [f"```text\n{''.join(lines).rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def linked_files(page: str, text: str) -> set[str]:
    """Return the files outside docs/, relative to the repository, that a page links to."""
    paths = (_outside(page, match[2]) for match in LINK.finditer(text))
    return {path for path in paths if path and path not in MOVED}


def _outside(page: str, target: str) -> str:
    """Return a link's target relative to the repository if it is outside docs/, else empty."""
    if not target or "://" in target or target.startswith("mailto:"):
        return ""
    base = "" if page in MOVED.values() else posixpath.join("docs", posixpath.dirname(page))
    path = posixpath.normpath(posixpath.join(base, target))
    inside = path.startswith(("docs/", "..")) or not (ROOT / path).exists()
    return "" if inside else path


def _relink(page: str, text: str) -> str:
    folder = posixpath.dirname(page) or "."

    def replaced(match: re.Match[str]) -> str:
        start, target, anchor, end = match[1], match[2], match[3] or "", match[4]
        path = _outside(page, target)
        if path in MOVED:
            target = posixpath.relpath(MOVED[path], folder)
        elif path:
            target = posixpath.relpath(f"source/{path}.md", folder)
        elif page in MOVED.values() and target.startswith("docs/"):
            target = target.removeprefix("docs/")
        return f"{start}{target}{anchor}{end}"

    return LINK.sub(replaced, _link_lines(page, text))


def _link_lines(page: str, text: str) -> str:
    """Replace links to source lines by HTML links: MkDocs does not know these anchors."""
    folder = posixpath.dirname(page) or "."

    def replaced(match: re.Match[str]) -> str:
        label, target, line = match.groups()
        listing = posixpath.relpath(f"source/{_outside(page, target)}.html", folder)
        return f'<a href="{listing}#__codelineno-0-{line}"><code>{label.strip("`")}</code></a>'

    return re.sub(r"\[([^\]]*)\]\(([^)#\s]+)#L(\d+)\)", replaced, text)


def source_page(path: str) -> str:
    """Return the listing of a file, or the names of the files in a folder."""
    front = "---\nsearch: {exclude: true}\nhide: [navigation]\n---\n"
    if (ROOT / path).is_dir():
        names = "\n".join(f"- `{p.name}`" for p in sorted((ROOT / path).iterdir()))
        return f"{front}# {path}\n\n{names}\n"
    text = (ROOT / path).read_text("utf-8")
    fence = f'````{LANGUAGES.get(Path(path).suffix, "text")} linenums="1"'
    return f"{front}# {path}\n\n{fence}\n{text}````\n"
