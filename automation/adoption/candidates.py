"""Judges which services `herdsman adopt` may take over, by what exists for them. Pure; `adopter` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from automation.adoption.kept_template import digest_of
from automation.adoption.ownership import controller_of
from automation.reconcile.plan import ObjectName
from components import naming
from components.providers.kubernetes_ownership import managers_words
from components.providers.kubernetes_records import applied_fields
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.dialects.registry import key_of

MANAGED_BY_AGENT = ("llmkube.ai/managed-by", "metal-agent")


class State(StrEnum):
    """What `adopt` makes of a service."""

    ADOPTABLE = "adoptable"
    OURS = "ours"
    """A loop of this class looks after it and has applied it."""
    ON_HOST = "on a host"
    """LLMKube's agent runs it, and goes on doing so."""
    FOREIGN = "foreign"
    """Its Deployment belongs to somebody else."""


@dataclass(frozen=True)
class Candidate:
    """One service, and what was found to exist for it."""

    cr: Json
    state: State
    why: str = ""
    deployment: Json | None = None
    pods: frozenset[str] = field(default_factory=frozenset)
    """The uids of its pods."""
    workloads: Mapping[ObjectName, Json] = field(default_factory=dict)
    """Of a service of another dialect than LLMKube's: what runs its pods."""
    between: Json | None = None
    """The Service of llmaz that a Playground's objects belong to, which `adopt` takes out of the way."""
    held: tuple[Json, ...] = ()
    """What belongs to it."""
    foreign_names: tuple[str, ...] = ()
    """Objects of the service that nothing in a namespace can own, so that only `herdsman.dev/adopt` takes them over."""

    @property
    def key(self) -> ServiceKey:
        return key_of(self.cr)

    @property
    def template_digest(self) -> str:
        """Names the pod template that its pods run; empty where it has no Deployment."""
        return digest_of(self.deployment["spec"]["template"]) if self.deployment is not None else ""


def candidate(
    cr: Json,
    *,
    model: Json | None,
    deployment: Json | None,
    pods: Sequence[Json],
    slices: Sequence[Json],
    namespace_annotations: Mapping[str, str],
    controller_class: str,
) -> Candidate:
    """Judge one service. `slices` are the EndpointSlices of its Service."""
    uids = frozenset(str(pod["metadata"]["uid"]) for pod in pods if "deletionTimestamp" not in pod["metadata"])

    def found(state: State, why: str = "") -> Candidate:
        return Candidate(cr, state, why, deployment, uids)

    named = controller_of(cr, namespace_annotations)
    applied = deployment is not None and is_applied(deployment)
    if named == controller_class and (applied or deployment is None):
        return found(State.OURS, f"a loop of class `{controller_class}` looks after it")
    if _on_host(model, slices):
        return found(State.ON_HOST, "LLMKube's agent runs it on a host, and keeps it as long as that agent lives")
    if deployment is not None and not _is_its_own(cr, deployment):
        return found(
            State.FOREIGN, f"Deployment {deployment['metadata']['name']} is held by {managers_words(deployment)}"
        )
    return found(State.ADOPTABLE)


def is_applied(deployment: Json) -> bool:
    """Whether a loop of ours has applied a live Deployment, and all before it."""
    annotations = deployment["metadata"].get("annotations") or {}
    return (
        naming.ANNOTATION_APPLIED_HASH in annotations and applied_fields(deployment, naming.FIELD_MANAGER) is not None
    )


def _on_host(model: Json | None, slices: Sequence[Json]) -> bool:
    label, value = MANAGED_BY_AGENT
    if any((each["metadata"].get("labels") or {}).get(label) == value for each in slices):
        return True
    hardware = ((model or {}).get("spec") or {}).get("hardware") or {}
    return hardware.get("accelerator") == "metal"


def _is_its_own(cr: Json, deployment: Json) -> bool:
    owners = deployment["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == cr["metadata"]["uid"] for owner in owners)
