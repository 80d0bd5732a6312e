"""The frame of all pages: head, navigation, and the two pages without data."""

from __future__ import annotations

from automation.web_console.html import Html, tag

NAVIGATION = {
    "/": "Services",
    "/queue": "Queue",
    "/hosts": "Hosts",
    "/models": "Models",
    "/catalog": "Catalog",
    "/playground": "Playground",
}


def page(title: str, content: Html, *, place: str, live: str = "services") -> Html:
    """Return a whole page. The script loads its `main` again when what it follows (`live.TOPICS`) has changed."""
    links = [
        tag("a", text, href=path, aria_current="page" if text == title else None) for path, text in NAVIGATION.items()
    ]
    header = tag(
        "header",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("strong", "Herdsman"),
        tag("nav", links, aria_label="Pages"),
        tag("span", place, class_="place"),
    )
    main = tag("main", tag("h1", title), content, id="content", data_live=live or None)
    return document(title, header, main)


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


def error(title: str, text: str) -> Html:
    """Return the page of a failed request."""
    back = tag("p", tag("a", "Back to the services", href="/"))
    return document(title, tag("main", tag("h1", title), tag("p", text, role="alert"), back, id="content"))


def sign_in() -> Html:
    """Return the page for a browser without a session."""
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
