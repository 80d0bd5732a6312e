"""The frame of all pages: head, navigation, and the two pages without data."""

from __future__ import annotations

from dataclasses import dataclass

from automation.web_console.html import Html, tag

NAVIGATION = {
    "/": "Services",
    "/queue": "Queue",
    "/changes": "Changes",
    "/hosts": "Hosts",
    "/models": "Models",
    "/catalog": "Catalog",
    "/playground": "Playground",
}


@dataclass(frozen=True)
class Frame:
    """What the header shows."""

    place: str
    user: str = ""
    """Who has signed in; empty where nobody signs in."""
    namespace: str = ""
    """The namespace whose services are shown; empty for all."""
    token: str = ""
    """The token of the session's forms."""


def page(title: str, content: Html, frame: Frame, *, live: str = "services") -> Html:
    """Return a whole page. The script loads its `main` again when what it follows (`live.TOPICS`) has changed."""
    main = tag("main", tag("h1", title), content, id="content", data_live=live or None)
    return document(title, _header(title, frame), main)


def _header(title: str, frame: Frame) -> Html:
    links = [
        tag("a", text, href=path, aria_current="page" if text == title else None) for path, text in NAVIGATION.items()
    ]
    return tag(
        "header",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("strong", "Herdsman"),
        tag("nav", links, aria_label="Pages"),
        tag("span", frame.place, class_="place"),
        _signed_in(frame) if frame.user else None,
    )


def _signed_in(frame: Frame) -> Html:
    token = tag("input", type="hidden", name="token", value=frame.token)
    namespace = tag(
        "form",
        token,
        tag("label", "Namespace", for_="namespace"),
        tag("input", id="namespace", name="namespace", value=frame.namespace, placeholder="all", size=12),
        tag("button", "Show"),
        method="post",
        action="/namespace",
    )
    leaving = tag("form", token, tag("button", "Sign out"), method="post", action="/logout")
    return tag("div", namespace, tag("span", frame.user, class_="user"), leaving, class_="signed-in")


def document(title: str, *body: Html) -> Html:
    """Return an HTML document."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · Herdsman"),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href="/static/console.css"),
        tag("script", src="/static/console.js", defer=True),
    )
    return Html(f"<!doctype html>{tag('html', head, tag('body', *body), lang='en')}")


def error(title: str, text: str, frame: Frame | None) -> Html:
    """Return the page of a failed request. Without a frame it has no header, as nobody may have signed in."""
    back = tag("p", tag("a", "Back to the services", href="/"))
    main = tag("main", tag("h1", title), tag("p", text, role="alert"), back, id="content")
    return document(title, *([_header(title, frame)] if frame is not None else []), main)


def open_by_link() -> Html:
    """Return the page for a browser that has not opened the link of the command."""
    return document(
        "Sign in",
        tag(
            "main",
            tag("h1", "Open the console by its link"),
            tag(
                "p",
                "The link that `herdsman console` printed works once. Start the command again for another link.",
            ),
            id="content",
        ),
    )
