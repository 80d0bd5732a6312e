"""One service: its state, its conditions, what can be done with it, its versions and Events."""

from __future__ import annotations

from urllib.parse import quote

from automation.places.place import ServiceState, State
from automation.places.service_view import conditions_of
from automation.web_console.html import Child, Html, facts, join, table, tag
from automation.web_console.reading import Details, as_text
from kubeapi.json_types import Json


def path_of(service: ServiceState, action: str = "") -> str:
    """Return the path of a service's page, or of an action on it."""
    parts = [service.namespace, service.name, *([action] if action else [])]
    kind = f"?kind={quote(service.kind, safe='')}" if service.kind else ""
    return "/services/" + "/".join(quote(part, safe="") for part in parts) + kind


def log_path(service: ServiceState, replica: str, action: str = "log") -> str:
    """Return the path of the page of a replica's log, or of its stream."""
    path = path_of(service, action)
    return f"{path}{'&' if '?' in path else '?'}replica={quote(replica, safe='')}"


def page(service: ServiceState, details: Details, *, token: str) -> Html:
    """Return the page of a service; `token` goes into its forms."""
    return join(
        [
            _summary(service),
            _pending(service, details.pending, token) if details.pending else None,
            tag("section", tag("h2", "Actions"), _actions(service, token)),
            tag("section", tag("h2", "Conditions"), _conditions(service)),
            tag("section", tag("h2", "Logs"), _logs(service, details)) if details.replicas else None,
            tag("section", tag("h2", "Versions"), _versions(service, details)) if details.revisions else None,
            tag("section", tag("h2", "Events"), _events(details)) if details.events else None,
            tag("details", tag("summary", "The object as YAML"), tag("pre", as_text(service.document))),
        ]
    )


def _summary(service: ServiceState) -> Html:
    return facts(
        [
            ("State", [tag("span", service.state.value, class_=f"badge {service.state.value}"), f" {service.phase}"]),
            ("Why", ": ".join(text for text in (service.reason, service.message) if text) if service.message else ""),
            ("Model", service.model),
            ("Replicas", f"{service.ready_replicas} of {service.desired_replicas} ready"),
            ("Context", f"{service.context_size:,} tokens" if service.context_size else ""),
            ("Runs on", service.runs_on),
            ("Endpoint", tag("code", service.endpoint) if service.endpoint else ""),
        ]
    )


def pending_section(title: str, pending: Json, action: Child) -> Html:
    """Return what a pending change would do, with what can be done about it."""
    changes = [tag("li", str(each)) for each in pending.get("changes") or ()]
    return tag(
        "section",
        tag("h2", title),
        tag("p", str(pending.get("summary", ""))),
        tag("ul", changes) if changes else None,
        action,
        class_="pending",
    )


def approval_form(pending: Json, action: str, token: str) -> Html:
    """Return the form that approves a pending change, and no other one."""
    digest = str(pending["digest"])
    button = tag("button", f"Approve {digest}")
    return tag("form", hidden("token", token), hidden("digest", digest), button, method="post", action=action)


def _pending(service: ServiceState, pending: Json, token: str) -> Html:
    form = approval_form(pending, path_of(service, "approve"), token)
    return pending_section("A change waits for approval", pending, form)


def _actions(service: ServiceState, token: str) -> Html:
    stopped = service.state is State.STOPPED
    verb, text = ("start", "Start") if stopped else ("stop", "Stop")
    replicas = (service.document.get("spec") or {}).get("replicas")
    return tag(
        "div",
        tag(
            "form",
            hidden("token", token),
            tag("label", "Replicas", for_="replicas"),
            tag(
                "input",
                type="number",
                id="replicas",
                name="replicas",
                min=0,
                value=replicas or service.desired_replicas,
            ),
            tag("button", "Scale"),
            method="post",
            action=path_of(service, "scale"),
        ),
        tag("form", hidden("token", token), tag("button", text), method="post", action=path_of(service, verb)),
        tag("a", "Chat", href=f"/playground?service={quote(f'{service.namespace}/{service.name}', safe='')}"),
        class_="actions",
    )


def _conditions(service: ServiceState) -> Html:
    rows: list[list[Child]] = [
        [kind, str(each.get("status", "")), str(each.get("reason", "")), str(each.get("message", ""))]
        for kind, each in sorted(conditions_of(service.document).items())
    ]
    return table(("Condition", "Status", "Reason", "Message"), rows, empty="The status has no condition yet.")


def _logs(service: ServiceState, details: Details) -> Html:
    links = [
        tag("li", tag("a", each.name, href=log_path(service, each.name)), f" {each.where}") for each in details.replicas
    ]
    return tag("ul", links)


def _versions(service: ServiceState, details: Details) -> Html:
    rows: list[list[Child]] = [
        [str(each.number), each.recorded_at, each.changed_by, each.result, each.cause, tag("pre", each.changes)]
        for each in details.revisions
    ]
    compared = tag("p", tag("a", "Compare versions", href=path_of(service, "versions")))
    return join([table(("Version", "Applied", "By", "Result", "Cause", "Changes"), rows, empty=""), compared])


def _events(details: Details) -> Html:
    rows: list[list[Child]] = [
        [
            str(each.get("lastTimestamp") or each.get("eventTime") or ""),
            str(each.get("reason", "")),
            str(each.get("message", "")),
        ]
        for each in details.events
    ]
    return table(("Time", "Reason", "Message"), rows, empty="")


def hidden(name: str, value: str) -> Html:
    """Return a hidden field of a form."""
    return tag("input", type="hidden", name=name, value=value)
