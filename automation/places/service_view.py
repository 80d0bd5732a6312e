"""Reads phase, model, replicas and endpoint of a service of any dialect from its custom resource. Pure.

Used by the places, and by `herdsman get`, `describe` and `top`. LLMKube's status has all of them. In the other
dialects they follow from the upstream project's fields and conditions, and from Herdsman's conditions where the loop
has the service.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kubeapi.json_types import Json
from program.dialects.kserve.naming import COMPONENT, LEADER, PART_OF, WORKLOAD
from program.dialects.registry import LLMKUBE, dialect_of, kind_text

KSERVE_PART = "llminferenceservice"
_DIGEST = re.compile(r"--digest ([0-9a-f]+)")


@dataclass(frozen=True)
class ServiceView:
    """One service, by its custom resource alone."""

    kind: str
    """Empty for an InferenceService, the default kind of the commands."""
    phase: str
    model: str
    ready_replicas: int
    desired_replicas: int
    replicas: int
    endpoint: str
    reason: str
    message: str
    """Why the service is not ready; empty when it is."""


def view_of(service: Json) -> ServiceView:
    """Read a custom resource of any dialect."""
    dialect = dialect_of(service)
    if dialect in ("", LLMKUBE):
        return _of_llmkube(service)
    return _of_kserve(service) if dialect == "kserve" else _of_llmaz(service, kind_text(dialect))


def conditions_of(service: Json) -> dict[str, Json]:
    """Return the conditions by type."""
    return {str(each.get("type")): each for each in (service.get("status") or {}).get("conditions") or ()}


def pending_of(service: Json) -> Json | None:
    """Return the change that waits for approval, in the form of LLMKube's status; None where none waits.

    The CRDs of the other dialects may lack the field. Then the condition ChangePending names the change.
    """
    status = service.get("status") or {}
    if (pending := status.get("pendingChange")) and pending.get("digest"):
        return dict(pending)
    condition = conditions_of(service).get("ChangePending") or {}
    found = _DIGEST.search(str(condition.get("message", "")))
    if condition.get("status") != "True" or found is None:
        return None
    return {"digest": found[1], "summary": str(condition["message"]).partition("; approve it with ")[0]}


def is_replica(pod: Json) -> bool:
    """Return whether a pod of a service is a replica.

    Of KServe's pods, these are none: endpoint pickers, tokenizers, prefill pods, and workers of a group.
    """
    labels = pod["metadata"].get("labels") or {}
    if labels.get(PART_OF) != KSERVE_PART:
        return True
    return labels.get(COMPONENT) in (WORKLOAD, f"{WORKLOAD}{LEADER}")


def observed_generation(service: Json) -> int | None:
    """Return the generation that the status is for; None where the status has none."""
    status = service.get("status") or {}
    if "observedGeneration" in status:
        return int(status["observedGeneration"])
    generations = [each.get("observedGeneration") for each in conditions_of(service).values()]
    known = [int(each) for each in generations if each is not None]
    return max(known) if known else None


def _of_llmkube(service: Json) -> ServiceView:
    status = service.get("status") or {}
    ready = conditions_of(service).get("Ready") or {}
    return ServiceView(
        kind="",
        phase=status.get("phase") or "Unknown",
        model=str((service.get("spec") or {}).get("modelRef", "")),
        ready_replicas=status.get("readyReplicas") or 0,
        desired_replicas=status.get("desiredReplicas") or 0,
        replicas=status.get("replicas") or 0,
        endpoint=status.get("endpoint") or "",
        reason=str(ready.get("reason", "")),
        message="" if ready.get("status") == "True" else str(ready.get("message", "")),
    )


def _of_kserve(service: Json) -> ServiceView:
    spec, status = service.get("spec") or {}, service.get("status") or {}
    model, primary = spec.get("model") or {}, (status.get("workloads") or {}).get("primary") or {}
    addresses = [str(each["url"]) for each in status.get("addresses") or () if each.get("url")]
    wanted = int(spec.get("replicas", 1) if spec.get("replicas") is not None else 1)
    ready = int(primary.get("readyReplicas") or 0)
    if (scaling := spec.get("scaling") or {}) and spec.get("replicas") is None:
        wanted = max(int(scaling.get("minReplicas") or 1), ready)
    return ServiceView(
        kind=kind_text("kserve"),
        model=str(model.get("name") or model.get("uri") or ""),
        ready_replicas=ready,
        desired_replicas=wanted,
        replicas=ready,
        endpoint=str(status.get("url") or next(iter(addresses), "")),
        **_condition_words(service, "Ready"),
    )


def _of_llmaz(service: Json, kind: str) -> ServiceView:
    metadata, spec, status = service["metadata"], service.get("spec") or {}, service.get("status") or {}
    exist = int(status.get("replicas") or 0)
    words = _condition_words(service, "Available")
    wanted = int(spec.get("replicas", 1) if spec.get("replicas") is not None else 1)
    return ServiceView(
        kind=kind,
        model=", ".join(_claimed(spec)),
        # The upstream status counts existing pods only.
        ready_replicas=min(exist, wanted) if words["phase"] == "Ready" else 0,
        desired_replicas=wanted,
        replicas=exist,
        endpoint=f"http://{metadata['name']}-lb.{metadata['namespace']}.svc:8080" if exist else "",
        **words,
    )


def _claimed(spec: Json) -> list[str]:
    one = (spec.get("modelClaim") or {}).get("modelName")
    several = (spec.get("modelClaims") or {}).get("models") or ()
    return [str(one)] if one else [str(each.get("name")) for each in several]


def _condition_words(service: Json, serves: str) -> dict[str, str]:
    """Return phase, reason and message by conditions: `serves` is the upstream one, Ready and Stalled Herdsman's."""
    conditions = conditions_of(service)
    ready = conditions.get("Ready") or conditions.get(serves) or {}
    if ready.get("status") == "True" and (conditions.get(serves) or ready).get("status") == "True":
        return {"phase": "Ready", "reason": str(ready.get("reason") or ""), "message": ""}
    condition = ready or conditions.get("Progressing") or {}
    stopped = str(condition.get("reason") or "") in ("Stopped", "Suspended", "PlaygroundStopped", "ServiceStopped")
    if stopped:
        phase = "Stopped"
    elif (conditions.get("Stalled") or {}).get("status") == "True" or condition.get("reason") == "AbortProcessing":
        phase = "Failed"
    else:
        phase = "Progressing" if conditions else "Unknown"
    message = str(condition.get("message") or "")
    pending = conditions.get("ChangePending") or {}
    # KServe's Ready has the message of the upstream controller, which does not mention the pending change.
    if pending.get("status") == "True" and str(pending.get("message")) not in message:
        message = "; a change is pending: ".join(part for part in (message, str(pending["message"])) if part)
    return {"phase": phase, "reason": str(condition.get("reason") or ""), "message": message}
