"""The end of the log of one replica. The script appends new lines; without it, a link reads the log again."""

from __future__ import annotations

from collections.abc import Sequence

from automation.places.place import ServiceState
from automation.places.replica_logs import Replica
from automation.web_console.html import Html, join, tag
from automation.web_console.pages.service import log_path, path_of


def page(service: ServiceState, replicas: Sequence[Replica], chosen: Replica | None, text: str, problem: str) -> Html:
    """Return the page; `problem` says why there is no text."""
    back = tag("p", tag("a", f"Back to {service.name}", href=path_of(service)))
    if chosen is None:
        return join([back, tag("p", "The service has no replica now.", class_="empty")])
    links = [
        tag(
            "a",
            f"{each.name} ({each.where})",
            href=log_path(service, each.name),
            aria_current="page" if each.name == chosen.name else None,
        )
        for each in replicas
    ]
    follow = None if problem else log_path(service, chosen.name, "log-lines")
    return join(
        [
            back,
            tag("nav", links, aria_label="Replicas", class_="filter"),
            tag("p", tag("a", "Read again", href=log_path(service, chosen.name)), class_="again"),
            tag("p", problem or ("" if text else "The log has no lines yet."), id="log-state", role="status"),
            tag("pre", text, class_="log", tabindex=0, role="region", aria_label="Log", data_follow=follow),
        ]
    )
