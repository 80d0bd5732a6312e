"""The difference of two applied versions of a service, or of one and the present spec."""

from __future__ import annotations

from collections.abc import Sequence

from automation.history.comparing import Comparison
from automation.history.revision import Revision
from automation.places.place import ServiceState
from automation.web_console.html import Html, join, tag
from automation.web_console.pages.service import hidden, path_of

NOW = "now"
"""The choice that means the present spec."""
_MARKS = {"+": "ins", "-": "del"}


def page(
    service: ServiceState, revisions: Sequence[Revision], chosen: tuple[str, str], found: Comparison | None
) -> Html:
    """Return the form that chooses two versions, and their difference. `found` is None if one does not exist."""
    back = tag("p", tag("a", f"Back to {service.name}", href=path_of(service)))
    if not revisions:
        return join([back, tag("p", "No version of the service has been applied yet.", class_="empty")])
    numbers = [str(each.number) for each in revisions]
    form = tag(
        "form",
        hidden("kind", service.kind) if service.kind else None,
        _choice("From", "from", numbers, chosen[0]),
        _choice("to", "to", [NOW, *numbers], chosen[1]),
        tag("button", "Compare"),
        method="get",
        action=path_of(service, "versions").partition("?")[0],
        class_="choice",
    )
    return join([back, form, _difference(found)])


def _choice(label: str, name: str, values: Sequence[str], chosen: str) -> Html:
    options = [
        tag("option", "the present spec" if each == NOW else f"version {each}", value=each, selected=each == chosen)
        for each in values
    ]
    return join([tag("label", label, for_=name), tag("select", options, id=name, name=name)])


def _difference(found: Comparison | None) -> Html:
    if found is None:
        return tag("p", "One of the two versions is not kept any more.", role="alert")
    if not found.lines:
        return tag("p", "The two versions are equal.", class_="empty")
    lines = [tag(_MARKS.get(each[:1], "span"), f"{each}\n") for each in found.lines]
    return join(
        [
            tag("h2", "Changed fields"),
            tag("ul", [tag("li", each) for each in found.changes]),
            tag("h2", "Difference as YAML"),
            tag("pre", lines, class_="diff", tabindex=0, role="region", aria_label="Difference as YAML"),
        ]
    )
