"""The hosts with the memory that their processes use."""

from __future__ import annotations

from collections.abc import Sequence

from automation.places.resource_use import HostUse
from automation.web_console.html import Child, Html, table, tag


def page(uses: Sequence[HostUse]) -> Html:
    """Return the table of the hosts."""
    titles = ("Host", "State", "Memory", "Replicas", "Tokens/s", "Pressure")
    empty = "There is no host. `herdsman host add` adds a machine."
    return table(titles, [_row(each) for each in uses], empty=empty)


def _row(each: HostUse) -> list[Child]:
    return [
        each.name,
        tag("span", each.state, class_=f"badge {'ready' if each.ready else 'failed'}"),
        _memory(each),
        f"{each.serving}/{each.processes}",
        "" if each.tokens_per_second is None else f"{each.tokens_per_second:.1f}",
        each.pressure,
    ]


def _memory(each: HostUse) -> Child:
    if each.budget_bytes is None:
        return ""
    if each.memory_bytes is None:
        return f"{each.budget_bytes / 2**30:.1f} GiB"
    text = f"{each.memory_bytes / 2**30:.1f} of {each.budget_bytes / 2**30:.1f} GiB"
    bar = tag(
        "meter", text, value=each.memory_bytes, max=each.budget_bytes, high=int(each.budget_bytes * 0.9), title=text
    )
    return [bar, tag("small", f" {text}")]
