"""Previews ModelRouters, ModelPools and LoRAAdapters of the cluster: the change from the accepted version to the spec.

Called by `requests`. Such a change exists while a mode or a policy holds it back: otherwise the loop has accepted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from automation.places.resources import list_resources
from automation.preview.changes import ResourcePreview
from automation.preview.custom_resources import AppliedDocument
from automation.preview.lookup import PreviewLookup
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.desired.facts import Problem
from program.dialects.registry import REFERRERS
from program.dialects.status.accepted_version import accepted_version, with_accepted
from program.dialects.status.conditions import Reason, Type, condition_of
from program.dialects.status.policy_condition import is_denied


@dataclass
class LiveResources:
    """The resources of the cluster that a preview shows."""

    look: PreviewLookup
    found: list[AppliedDocument] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def notes(self) -> Iterator[str]:
        """Yield why changes wait."""
        for each in self.found:
            held = condition_of(each.cr, Type.CHANGE_PENDING)
            if held.get("status") == "True":
                metadata = each.cr["metadata"]
                yield f"{each.cr['kind']} {metadata['namespace']}/{metadata['name']}: {held.get('message', '')}"


def find_resources(client: KubeClient, namespace: str | None, names: Iterable[tuple[str, str]]) -> LiveResources:
    """Read the named resources. `names` are the word of `REFERRERS` and the name. Raises ApiError."""
    resources = LiveResources(PreviewLookup(client))
    for word, name in names:
        kind = REFERRERS[word]
        found: list[Json] = []
        with suppress(NotFound):
            found = client.list(kind, namespace, field_selector=f"metadata.name={name}")["items"]
        if not found:
            where = f" in namespace `{namespace}`" if namespace else ""
            resources.errors.append(f"no {kind.kind} `{name}`{where}")
        resources.found += map(_as_applied, found)
    return resources


def find_changed_resources(client: KubeClient, namespace: str | None) -> LiveResources:
    """Read the resources whose change is held back, of the kinds that the caller may list. Raises ApiError."""
    resources = LiveResources(PreviewLookup(client))
    resources.found += (each for each in map(_as_applied, list_resources(client, namespace)) if each.changed)
    return resources


def as_held(preview: ResourcePreview, cr: Json) -> ResourcePreview:
    """Return the preview of a live resource with the digest for its approval, or with the policy that denies it."""
    pending = (cr.get("status") or {}).get("pendingChange") or {}
    if pending.get("digest"):
        preview = replace(preview, digest=str(pending["digest"]))
    if is_denied(cr) and preview.problem is None and not preview.violations:
        message = str(condition_of(cr, Type.POLICY_COMPLIANT).get("message", ""))
        problem = Problem(reason=Reason.POLICY_VIOLATED, message=message, terminal=True)
        preview = replace(preview, problem=problem)
    return preview


def _as_applied(cr: Json) -> AppliedDocument:
    known = accepted_version(cr)
    if known is None and condition_of(cr, Type.CHANGE_PENDING).get("status") != "True":
        return AppliedDocument(cr, cr, changed=False)  # no loop manages it, or none has seen it yet
    return AppliedDocument(cr, with_accepted(cr), changed=known is None or known["spec"] != cr.get("spec"))
