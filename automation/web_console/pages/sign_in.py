"""The page on which a caller gives a token of the cluster."""

from __future__ import annotations

from automation.web_console.html import Html, tag
from automation.web_console.pages.layout import document


def page(reason: str = "") -> Html:
    """Return the form; `reason` says why it is shown again."""
    form = tag(
        "form",
        tag("label", "Token", for_="bearer"),
        tag(
            "input",
            type="password",
            id="bearer",
            name="bearer",
            required=True,
            autocomplete="off",
            spellcheck="false",
            aria_describedby="about",
        ),
        tag("button", "Sign in"),
        method="post",
        action="/login",
        class_="sign-in",
    )
    about = tag(
        "p",
        "The console reads and writes with this token alone, so you see what your roles allow. It keeps the token in "
        "memory until you sign out, the token expires, or 8 hours have passed. ",
        tag("code", "kubectl create token NAME"),
        " makes one for a ServiceAccount.",
        id="about",
    )
    return document(
        "Sign in",
        tag(
            "main",
            tag("h1", "Sign in with a token of the cluster"),
            tag("p", reason, role="alert") if reason else None,
            about,
            form,
            id="content",
        ),
    )
