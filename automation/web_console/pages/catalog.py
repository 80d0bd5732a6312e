"""The catalog: what fits where, and the preview of a deployment."""

from __future__ import annotations

from collections.abc import Sequence

from automation.places.place import PlannedChange
from automation.web_console.deploying import Fit
from automation.web_console.html import Child, Html, join, table, tag
from automation.web_console.pages.service import hidden
from kubeapi.json_types import Json


def page(fits: Sequence[Fit], *, token: str) -> Html:
    """Return the table of the models."""
    titles = ("Model", "Parameters", "Licence", "Context", "Fits", "Deploy")
    return table(titles, [_row(each, token) for each in fits], empty="The catalog has no model.")


def _row(fit: Fit, token: str) -> list[Child]:
    entry, choice = fit.entry, fit.choice
    deploy = tag(
        "form",
        hidden("token", token),
        hidden("id", entry.id),
        tag("button", "Deploy …", aria_label=f"Deploy {entry.id}"),
        method="post",
        action="/catalog/plan",
    )
    return [
        entry.id,
        entry.parameters,
        entry.licence,
        f"{entry.context:,}" if entry.context else "",
        _fits(fit),
        deploy if choice is not None else None,
    ]


def _fits(fit: Fit) -> Child:
    if fit.choice is None:
        return tag("span", "nowhere", class_="badge failed")
    return [tag("span", fit.choice.variant.quant, class_="badge ready"), f": {fit.choice.sum_text}"]


def plan_page(id_: str, name: str, documents: Sequence[Json], planned: PlannedChange, *, token: str) -> Html:
    """Return what a deployment would change, with the button that makes the change."""
    import yaml

    text = yaml.safe_dump_all(list(documents), sort_keys=False, allow_unicode=True)
    return join(
        [
            tag("h2", "What would change"),
            tag("pre", planned.text or "Nothing."),
            tag("details", tag("summary", "The manifests"), tag("pre", text)),
            tag(
                "form",
                hidden("token", token),
                hidden("id", id_),
                hidden("name", name),
                tag("button", "Deploy"),
                tag("a", "Cancel", href="/catalog"),
                method="post",
                action="/catalog/deploy",
                class_="actions",
            ),
        ]
    )
