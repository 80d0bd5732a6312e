"""Rolls back to the last pod template that served, when the new one fails and the user enabled rollbacks.

Called by the controller between rendering and planning. The template is read from its ReplicaSet: the Deployment
controller copies the hash of the template there with the Deployment's other annotations. The decision is written into
the status (condition RolledBack), so it holds for the next loop until the spec or the template changes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import structlog

from automation.cache.owners import selector_of
from automation.serving.rollout import CRASH_RESTARTS, crash_loops, live_template_hash, rendered_template_hash
from components import naming
from components.rendered import RenderedObject, RenderedService
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden
from kubeapi.json_types import Json
from program.desired.facts import Problem, RolloutFacts
from program.desired.keys import ServiceKey
from program.dialects.status.conditions import Type

ROLLED_BACK = "RolledBack"
ROLLOUT_FAILED = "RolloutFailed"
_POD_TEMPLATE_HASH = "pod-template-hash"


@dataclass(frozen=True)
class Template:
    """A pod template as a ReplicaSet has it, and the hash that it was rendered with."""

    hash: str
    body: Json


class Rollback:
    """Remembers which services run an older template, and that template. Thread-safe for different services."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._held: dict[ServiceKey, tuple[str, Problem]] = {}
        """By service: the hash of the template that failed, and the problem for the status."""
        self._templates: dict[ServiceKey, Template] = {}

    def apply(
        self,
        key: ServiceKey,
        cr: Json,
        rendered: RenderedService,
        deployment: Json | None,
        pods: tuple[Json, ...],
        *,
        wanted: bool,
    ) -> tuple[RenderedService, RolloutFacts]:
        """Return the rendered service, with the older template in place of a failed one, and the facts for the status.

        `wanted` is whether the user enabled rollbacks. Raises ApiError when the ReplicaSets cannot be read.
        """
        desired_hash = rendered_template_hash(rendered)
        served, made = served_hash(cr), ""
        if wanted and is_under_way(desired_hash, served, deployment) and crashing_pods(pods):
            made = pod_hash_of(replica_sets_of(self._client, key), desired_hash)
        why = rollout_failure(desired_hash, served, deployment, pods, made=made)
        failed = Problem(reason=ROLLOUT_FAILED, message=why) if why else None
        held = self._held_back(key, cr, desired_hash) if wanted else None
        if held is None and wanted and failed is not None:
            held = self._begin(cr, desired_hash, failed)
        if held is None:
            self.drop_service(key)
            return rendered, RolloutFacts(failed=failed)
        template = self._template(key, served)
        if template is None:
            message = (
                f"{held.message.removesuffix(_runs_again(served))}; the loop cannot roll back to template {served}, "
                "because the ReplicaSet of that template was deleted"
            )
            return rendered, RolloutFacts(failed=Problem(reason=ROLLOUT_FAILED, message=message))
        with self._lock:
            self._held[key] = (desired_hash, held)
        return with_template(rendered, template), RolloutFacts(rolled_back=held)

    def drop_service(self, key: ServiceKey) -> None:
        """Drop a service that runs its desired template, or is deleted."""
        with self._lock:
            self._held.pop(key, None)
            self._templates.pop(key, None)

    def _held_back(self, key: ServiceKey, cr: Json, desired_hash: str) -> Problem | None:
        """Return whether this loop or an earlier one rolled this template back before."""
        with self._lock:
            known = self._held.get(key)
        if known is not None:
            return known[1] if known[0] == desired_hash else None
        return written_rollback(cr, desired_hash)

    @staticmethod
    def _begin(cr: Json, desired_hash: str, failed: Problem) -> Problem | None:
        served = served_hash(cr)
        if not served or served == desired_hash:
            return None
        message = f"pod template {desired_hash} failed: {failed.message}{_runs_again(served)}"
        return Problem(reason=ROLLED_BACK, message=message)

    def _template(self, key: ServiceKey, served: str) -> Template | None:
        with self._lock:
            known = self._templates.get(key)
        if known is not None and known.hash == served:
            return known
        template = template_of(replica_sets_of(self._client, key), served)
        if template is not None:
            with self._lock:
                self._templates[key] = template
        return template


def _runs_again(served: str) -> str:
    return f"; template {served} runs again until the spec changes"


def rollout_failure(
    desired_hash: str, served: str, deployment: Json | None, pods: tuple[Json, ...], *, made: str = ""
) -> str:
    """Return why the rollout of the template `desired_hash` fails; empty while it does not, or has not begun. Pure.

    `made` is the hash that the Deployment controller gave to the pods of that template, empty when it was not read.
    Only a change of a template that served can fail: pods that crash before any template served, or after their own
    served, have other causes, which the pods report.
    """
    if not is_under_way(desired_hash, served, deployment) or deployment is None:
        return ""
    if deployment.get("progress_deadline_exceeded"):
        return "its replicas did not become ready within the Deployment's progress deadline"
    for pod in crashing_pods(pods):
        if made and pod["engine"].get("template") == made:
            name = pod["metadata"]["name"]
            return f"pod {name} was restarted {_restarts(pod)} times and does not become ready"
    return ""


def is_under_way(desired_hash: str, served: str, deployment: Json | None) -> bool:
    """Return whether the Deployment is rolling out the template `desired_hash` in place of one that served. Pure."""
    if deployment is None or not served or served == desired_hash or live_template_hash(deployment) != desired_hash:
        return False
    status = deployment.get("status") or {}
    target = (deployment.get("spec") or {}).get("replicas", 1)
    done = status.get("updatedReplicas", 0) == status.get("readyReplicas", 0) == status.get("replicas", -1)
    return bool(target) and not done


def crashing_pods(pods: tuple[Json, ...]) -> list[Json]:
    """List the pods that end again and again. Pure."""
    return [pod for pod in pods if crash_loops(pod) and _restarts(pod) >= CRASH_RESTARTS]


def _restarts(pod: Json) -> int:
    # The container that fetches the model counts as well: a change of its source or its flags can break it.
    return max([int(pod["engine"].get("restarts", 0)), *(int(p.get("restarts", 0)) for p in pod["problems"])])


def served_hash(cr: Json) -> str:
    """Return the hash of the last template that served, by the status."""
    return str((cr.get("status") or {}).get("servedTemplateHash") or "")


def written_rollback(cr: Json, desired_hash: str) -> Problem | None:
    """Return the rollback of the template `desired_hash` that the status has for this generation of the spec. Pure."""
    conditions = (cr.get("status") or {}).get("conditions") or ()
    condition: Json = next((c for c in conditions if c.get("type") == Type.ROLLED_BACK), {})
    message = str(condition.get("message", ""))
    generation = int(cr["metadata"].get("generation") or 0)
    if (
        condition.get("status") != "True"
        or condition.get("observedGeneration") != generation
        or desired_hash not in message
    ):
        return None
    return Problem(reason=str(condition.get("reason")), message=message)


def template_of(replica_sets: list[Json], served: str) -> Template | None:
    """Find the template with a hash among the ReplicaSets of a service. Pure."""
    for replica_set in replica_sets:
        annotations = replica_set["metadata"].get("annotations") or {}
        if served and annotations.get(naming.ANNOTATION_TEMPLATE_HASH) == served:
            body = replica_set["spec"]["template"]
            metadata = body.get("metadata") or {}
            labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k != _POD_TEMPLATE_HASH}
            kept = {key: value for key, value in metadata.items() if key != "creationTimestamp"}
            return Template(served, {**body, "metadata": {**kept, "labels": labels}})
    return None


def pod_hash_of(replica_sets: list[Json], template_hash: str) -> str:
    """Return the hash that pods of a template have as a label; empty when no ReplicaSet has it. Pure."""
    for replica_set in replica_sets:
        metadata = replica_set["metadata"]
        if (metadata.get("annotations") or {}).get(naming.ANNOTATION_TEMPLATE_HASH) == template_hash:
            return str((metadata.get("labels") or {}).get(_POD_TEMPLATE_HASH, ""))
    return ""


def with_template(rendered: RenderedService, template: Template) -> RenderedService:
    """Return the rendered service with another pod template in the Deployment. Pure.

    The Deployment controller compares templates, so the template of a ReplicaSet makes it scale up that ReplicaSet.
    """

    def substituted(obj: RenderedObject) -> RenderedObject:
        metadata = obj.manifest["metadata"]
        notes = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != naming.ANNOTATION_APPLIED_HASH}
        if obj.kind != "Deployment":
            return obj
        notes[naming.ANNOTATION_TEMPLATE_HASH] = template.hash
        spec = {**obj.manifest["spec"], "template": template.body}
        manifest = {**obj.manifest, "metadata": {**metadata, "annotations": notes}, "spec": spec}
        return replace(obj, manifest=manifest)

    objects = tuple(substituted(obj) for obj in rendered.objects)
    return RenderedService.of(rendered.key, objects, rendered.shared)


log = structlog.get_logger(__name__)


def replica_sets_of(client: KubeClient, key: ServiceKey) -> list[Json]:
    """List the ReplicaSets of a service; none when the loop has no right to. Raises any other ApiError."""
    selector = selector_of(key.dialect, (key.name,))
    try:
        found: list[Json] = client.list(kinds.REPLICA_SETS, key.namespace, label_selector=selector)["items"]
    except Forbidden as error:
        log.warning(
            "May not list ReplicaSets to find older templates; grant the permissions in docs/install/rbac.yaml",
            error=str(error),
        )
        return []
    return found
