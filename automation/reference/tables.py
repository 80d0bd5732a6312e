"""The Markdown of the generated reference pages: tables and text in which nothing is read as HTML."""

from __future__ import annotations

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. The cells are Markdown; a `|` in them is escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def prose(text: str) -> str:
    """Return text as one line, with `<`, `*` and `[` escaped outside of code."""
    parts = " ".join(text.split()).split("`")
    for index in range(0, len(parts), 2):
        parts[index] = parts[index].replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")
    return "`".join(parts)


def code(text: str) -> str:
    """Return text as code."""
    return f"`{text}`"
