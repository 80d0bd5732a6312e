"""The chat with a service. Only this page needs the script."""

from __future__ import annotations

from collections.abc import Sequence

from automation.places.place import ServiceState, State
from automation.web_console.html import Html, join, tag
from automation.web_console.pages.service import hidden

_ANSWERING = (State.READY, State.ASLEEP)


def page(states: Sequence[ServiceState], *, wanted: str, token: str) -> Html:
    """Return the form of the chat; `wanted` is NAMESPACE/NAME of the service that is chosen first."""
    usable = [each for each in states if each.state in _ANSWERING]
    if not usable:
        return tag("p", "No service can answer now.", class_="empty")
    options = [_option(each, wanted) for each in usable]
    return join(
        [
            tag("noscript", tag("p", "The chat needs JavaScript. `herdsman chat NAME` needs none.")),
            tag("div", id="conversation", aria_live="polite"),
            tag(
                "form",
                hidden("token", token),
                tag("label", "Service", for_="service"),
                tag("select", options, id="service", name="service"),
                tag("label", "Message", for_="message"),
                tag("textarea", id="message", name="message", rows=3, required=True),
                tag("button", "Send"),
                tag("button", "New conversation", type="button", id="clear"),
                id="chat",
                action="/playground/chat",
                method="post",
            ),
        ]
    )


def _option(each: ServiceState, wanted: str) -> Html:
    full = f"{each.namespace}/{each.name}"
    state = " (asleep: the first message starts it)" if each.state is State.ASLEEP else ""
    return tag(
        "option",
        f"{full}{state}",
        value=full,
        selected=full == wanted,
        data_namespace=each.namespace,
        data_name=f"{each.kind}/{each.name}" if each.kind else each.name,
    )
