"""The changes that wait for an approval: of services, ModelRouters, ModelPools and LoRAAdapters."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from automation.places.place import ServiceState
from automation.places.service_view import conditions_of, pending_of
from automation.web_console.html import Html, join, tag
from automation.web_console.pages.service import approval_form, path_of, pending_section
from kubeapi.json_types import Json
from program.dialects.registry import referrer_of
from program.dialects.status.conditions import Reason


def page(services: Sequence[ServiceState], resources: Sequence[Json], *, token: str) -> Html:
    """Return one section for each of these, which have a pending change. `token` goes into the forms."""
    sections = [_of_service(each) for each in services] + [_of_resource(each, token) for each in resources]
    return join(sections) if sections else tag("p", "No change waits for an approval.", class_="empty")


def approval_path(resource: Json) -> str:
    """Return the path that approves the pending change of a ModelRouter, ModelPool or LoRAAdapter."""
    metadata = resource["metadata"]
    parts = (referrer_of(resource), metadata["namespace"], metadata["name"], "approve")
    return "/changes/" + "/".join(quote(part, safe="") for part in parts)


def _of_service(service: ServiceState) -> Html:
    title = f"{service.kind or 'InferenceService'} {service.namespace}/{service.name}"
    link = tag("p", tag("a", f"Approve it on the page of {service.name}", href=path_of(service)))
    return pending_section(title, pending_of(service.document) or {}, link)


def _of_resource(resource: Json, token: str) -> Html:
    metadata, pending = resource["metadata"], pending_of(resource) or {}
    title = f"{resource['kind']} {metadata['namespace']}/{metadata['name']}"
    if (conditions_of(resource).get("ChangePending") or {}).get("reason") == Reason.PAUSED:
        text = "Its mode is Paused, so nothing is applied. Set the annotation herdsman.dev/mode to Preview or Apply."
        return pending_section(title, pending, tag("p", text))
    return pending_section(title, pending, approval_form(pending, approval_path(resource), token))
