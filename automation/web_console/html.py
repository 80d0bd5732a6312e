"""HTML as nested values. All text is escaped; only `Html` itself is not.

Only this module writes markup. Jinja2 is no dependency of Herdsman, and the console has twelve kinds of elements
(docs/adr/0079).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

_VOID = frozenset({"input", "meta", "link", "br"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """Return one element. Attributes that are None or False are left out; a trailing `_` of a name is cut off."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        words.append(label if value is True else f'{label}="{escape(str(value))}"')
    opening = f"<{' '.join(words)}>"
    return Html(opening if name in _VOID else f"{opening}{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """Return the markup of children, one after the other."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str | int):
            parts.append(escape(str(child)))
        else:
            parts.append(join(child))
    return Html("".join(parts))


def table(titles: Sequence[str], rows: Iterable[Iterable[Child]], *, empty: str) -> Html:
    """Return a table, or the text `empty` without rows. A cell is text or a list of children."""
    lines = [tag("tr", [tag("td", cell) for cell in row]) for row in rows]
    if not lines:
        return tag("p", empty, class_="empty")
    head = tag("thead", tag("tr", [tag("th", title, scope="col") for title in titles]))
    # On a narrow screen the table scrolls. The keyboard must reach it also where no cell has a link.
    label = f"Table: {', '.join(titles)}"
    shown = tag("table", head, tag("tbody", lines))
    return tag("div", shown, class_="scroll", tabindex=0, role="group", aria_label=label)


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Return a list of names and values. Pairs without a value are left out."""
    return tag("dl", [[tag("dt", name), tag("dd", value)] for name, value in pairs if value not in (None, "")])
