"""The services of all namespaces, and those that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from automation.places.place import Download, ServiceState, State
from automation.web_console.html import Child, Html, join, table, tag
from automation.web_console.pages.service import path_of

_ORDER = {state: number for number, state in enumerate((State.FAILED, State.WAITING, State.STARTING))}


def page(states: Sequence[ServiceState], *, wanted: str = "") -> Html:
    """Return the table of the services of a namespace, or of all."""
    namespaces = sorted({each.namespace for each in states})
    shown = [each for each in states if wanted in ("", each.namespace)]
    counts = Counter(each.state for each in shown)
    summary = [tag("li", badge(state), f" {counts[state]}") for state in State if counts[state]]
    links = [
        tag(
            "a",
            name or "all",
            href=f"/?namespace={name}" if name else "/",
            aria_current="page" if name == wanted else None,
        )
        for name in ("", *namespaces)
    ]
    return join(
        [
            tag("ul", summary, class_="counts") if summary else None,
            tag("nav", links, aria_label="Namespaces", class_="filter") if len(namespaces) > 1 else None,
            _table(
                shown, empty="There is no service. The catalog lists models, and `herdsman deploy NAME` serves one."
            ),
        ]
    )


def queue_page(states: Sequence[ServiceState]) -> Html:
    """Return the services that wait for something, and those that start."""
    waiting = [each for each in states if each.state in (State.WAITING, State.STARTING)]
    return _table(waiting, empty="No service waits.")


def _table(states: Sequence[ServiceState], *, empty: str) -> Html:
    ordered = sorted(states, key=lambda each: (_ORDER.get(each.state, len(_ORDER)), each.namespace, each.name))
    titles = ("Service", "Namespace", "State", "Model", "Replicas", "Runs on", "Why")
    return table(titles, [_row(each) for each in ordered], empty=empty)


def _row(each: ServiceState) -> list[Child]:
    return [
        [tag("a", each.name, href=path_of(each)), f" {each.kind}" if each.kind else None],
        each.namespace,
        [badge(each.state), bar_of(each.download) if each.download else None],
        each.model,
        f"{each.ready_replicas}/{each.desired_replicas}",
        each.runs_on,
        each.message,
    ]


def badge(state: State) -> Html:
    """Return a state as text in its colour."""
    return tag("span", state.value, class_=f"badge {state.value}")


def bar_of(download: Download) -> Html:
    """Return a download as a bar, or as text while its size is not known."""
    done = f"{download.done_bytes / 2**30:.1f} GiB"
    if not download.total_bytes:
        return tag("small", f" {done}")
    text = f"{done} of {download.total_bytes / 2**30:.1f} GiB"
    return tag("progress", text, value=download.done_bytes, max=download.total_bytes, title=text, aria_label=text)
