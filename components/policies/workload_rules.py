"""Built-in rules about pods: images, resources, and rights on the node. Pure; called by `in_force`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from components import demand
from components.policies.matching import LONGEST_VALUE, comes_from
from components.policies.schema import Bounds, ImageRegistries, Pods, Resources
from components.providers.kubernetes_diff import value_at
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService, RequestScaling
from program.desired.workloads import Workloads


class RuleViolation(NamedTuple):
    """One field whose value a rule does not allow."""

    field: str
    value: str
    rule: str
    fix: str


@dataclass(frozen=True)
class Subject:
    """The service that rules check."""

    desired: DesiredService
    rendered: RenderedService
    cr: Json

    @property
    def key(self) -> ServiceKey:
        return self.desired.key

    def pods(self) -> Iterator[tuple[str, Json]]:
        """Yield the path and the spec of each pod that the service would have."""
        for rendered in self.rendered.objects:
            # If the service describes its pods itself, it may have several objects of a kind, so the path names the
            # object.
            name = f"{rendered.kind}/" if self.desired.workloads is None else f"{rendered.kind} {rendered.name}/"
            for path in _TEMPLATES:
                template = value_at(rendered.manifest, path)
                if isinstance(template, dict) and isinstance(template.get("spec"), dict):
                    yield f"{name}{'.'.join(path)}.spec", template["spec"]

    def containers(self) -> Iterator[tuple[str, Json]]:
        """Yield the path and the spec of each container, init containers included."""
        for path, pod in self.pods():
            for group in ("initContainers", "containers"):
                for container in pod.get(group) or ():
                    yield f"{path}.{group}[{container.get('name', '')}]", container


_TEMPLATES: tuple[tuple[str, ...], ...] = (
    ("spec", "template"),
    ("spec", "leaderWorkerTemplate", "leaderTemplate"),
    ("spec", "leaderWorkerTemplate", "workerTemplate"),
)


# --- images -----------------------------------------------------------------------------------------------------------


def images(subject: Subject, rule: ImageRegistries) -> Iterator[RuleViolation]:
    """Check that the images of all containers have an allowed prefix."""
    allowed = ", ".join(rule.allowed)
    for path, container in subject.containers():
        image = str(container.get("image", ""))
        if not any(comes_from(image, prefix) for prefix in rule.allowed):
            own = image == subject.desired.image
            where = "an operator's setting (runtime_images, init_container_image)"
            if own or subject.desired.workloads is not None:
                where = "an image"
            yield RuleViolation(
                "spec.image" if own else f"{path}.image",
                image[:LONGEST_VALUE],
                f"images must come from {allowed}",
                f"use {where} from one of these registries",
            )


# --- resources --------------------------------------------------------------------------------------------------------


_ASK = {
    "cpu": "set spec.resources.cpu",
    "memory": "set spec.resources.memory",
    "ephemeral-storage": "set spec.resources.ephemeralStorage",
}


def resources(subject: Subject, rule: Resources) -> Iterator[RuleViolation]:
    """Check the resources of one replica and the number of replicas."""
    for name, bounds in (("cpu", rule.cpu), ("memory", rule.memory)):
        if bounds is not None:
            yield from _amounts(subject, name, bounds)
    desired = subject.desired
    if desired.workloads is not None:
        yield from _of_sets(desired.workloads, rule, desired.by_requests)
    elif rule.gpu is not None:
        count = desired.gpu.count if desired.gpu is not None else 0
        yield from _counted("spec.resources.gpu", count, rule.gpu.min, rule.gpu.max, "GPUs of one replica")
    if rule.replicas is not None and desired.workloads is None:
        (upper, most), (lower, least) = _bounds_of_replicas(desired)
        yield from _counted(upper, most, None, rule.replicas.max, "replicas")
        yield from _counted(lower, least, rule.replicas.min, None, "replicas")
    for path, container in subject.containers():
        stated = container.get("resources") or {}
        # A service does not set the resources of the containers that download its model.
        for name in rule.required if ".containers[" in path else ():
            if name not in (stated.get("requests") or {}) and name not in (stated.get("limits") or {}):
                field = f"{path}.resources.requests.{name}"
                ask = _ASK[name] if desired.workloads is None else f"set {name} in the container's resources"
                yield RuleViolation(field, "not set", f"every engine must set its {name}", ask)


def _bounds_of_replicas(desired: DesiredService) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the largest and the smallest number of replicas, each after the field that sets it."""
    if (scaling := desired.by_requests) is not None:
        # `replicas` is the present number: it follows the requests, and is 0 while the service sleeps.
        fields = ("replicas by requests: maximum", "replicas by requests: minimum")
        return (fields[0], scaling.max_replicas), (fields[1], scaling.min_replicas)
    if (bounds := desired.autoscaling) is not None:
        fields = ("spec.autoscaling.maxReplicas", "spec.autoscaling.minReplicas")
        return (fields[0], bounds.max_replicas), (fields[1], bounds.min_replicas)
    return ("spec.replicas", desired.replicas), ("spec.replicas", desired.replicas)


def _of_sets(workloads: Workloads, rule: Resources, by_requests: RequestScaling | None) -> Iterator[RuleViolation]:
    """Check the GPUs and the replicas of each set of pods. Minimums apply only to the pods that serve."""
    for pods in workloads.pods:
        is_main = pods is workloads.main
        if rule.gpu is not None:
            count, least = int(demand.of_replica(pods, demand.gpus)), rule.gpu.min if is_main else None
            yield from _counted(f"{pods.name}: GPUs", count, least, rule.gpu.max, "GPUs of one replica")
        if rule.replicas is not None:
            most, least = demand.most_replicas(pods), demand.least_replicas(pods)
            if is_main and by_requests is not None:
                most, least = by_requests.max_replicas, by_requests.min_replicas
            yield from _counted(f"{pods.name}: replicas", most, None, rule.replicas.max, "replicas")
            if is_main:
                yield from _counted(f"{pods.name}: replicas", least, rule.replicas.min, None, "replicas")


def _amounts(subject: Subject, name: str, bounds: Bounds) -> Iterator[RuleViolation]:
    where = f"spec.resources.{name}" if subject.desired.workloads is None else "the resources of its containers"
    for path, pod in subject.pods():
        asked = demand.of_pod(pod, lambda container: demand.stated(container, name, "limits", "requests"))
        field = f"{path}: {name}"
        if bounds.max is not None and asked > bounds.max:
            rule = f"one pod may have at most {_written(bounds.max, name)} {name}"
            yield RuleViolation(field, _written(asked, name), rule, f"request less in {where}")
        if bounds.min is not None and asked < bounds.min:
            rule = f"one pod must request at least {_written(bounds.min, name)} {name}"
            yield RuleViolation(field, _written(asked, name), rule, f"request more in {where}")
    for rendered in subject.rendered.objects:
        if rendered.kind != kinds.HOST_PROCESSES.kind or name != "memory":
            continue
        memory = rendered.manifest["spec"].get("memoryBytes")
        if memory is not None and bounds.max is not None and memory > bounds.max:
            rule = f"one replica may have at most {_written(bounds.max, name)} memory"
            field = "HostProcess/spec.memoryBytes"
            yield RuleViolation(field, _written(Decimal(memory), name), rule, "request less in spec.resources.memory")


def _counted(field: str, count: int, least: int | None, most: int | None, what: str) -> Iterator[RuleViolation]:
    if most is not None and count > most:
        yield RuleViolation(field, str(count), f"at most {most} {what}", f"set it to {most} or less")
    if least is not None and count < least:
        yield RuleViolation(field, str(count), f"at least {least} {what}", f"set it to {least} or more")


def _written(amount: Decimal, name: str) -> str:
    if name == "memory":
        for suffix, power in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
            if amount >= 1 << power and amount % (1 << power) == 0:
                return f"{int(amount) >> power}{suffix}"
        return str(int(amount))
    milli = amount * 1000
    return format(amount.normalize(), "f") if amount == int(amount) else f"{int(milli)}m"


# --- what pods may do -------------------------------------------------------------------------------------------------

_NOT_HOSTED = "remove it from the spec"


def pods(subject: Subject, rule: Pods) -> Iterator[RuleViolation]:
    """Check the rights of pods on their nodes."""
    for path, pod in subject.pods():
        if rule.forbid_host_network:
            for field in ("hostNetwork", "hostPID", "hostIPC"):
                if pod.get(field):
                    words = "pods must not share the node's network, processes or IPC"
                    yield RuleViolation(f"{path}.{field}", "true", words, _NOT_HOSTED)
        if rule.forbid_host_path:
            for volume in pod.get("volumes") or ():
                if "hostPath" in volume:
                    where = f"{path}.volumes[{volume.get('name', '')}].hostPath"
                    value = str((volume["hostPath"] or {}).get("path", ""))[:LONGEST_VALUE]
                    fix = "use a claim or a downloaded model instead of spec.extraVolumes or a file:// source"
                    yield RuleViolation(where, value, "pods must not mount paths of their node", fix)
        for container_path, container in subject.containers():
            if container_path.startswith(path):
                yield from _security(container_path, container, pod, rule)


def _security(path: str, container: Json, pod: Json, rule: Pods) -> Iterator[RuleViolation]:
    own, of_pod = container.get("securityContext") or {}, pod.get("securityContext") or {}
    at = f"{path}.securityContext"
    if rule.forbid_privileged:
        for field in ("privileged", "allowPrivilegeEscalation"):
            if own.get(field):
                words = "containers must not be privileged or be able to become privileged"
                yield RuleViolation(f"{at}.{field}", "true", words, f"remove {field} from spec.securityContext")
    if rule.forbid_added_capabilities and (added := (own.get("capabilities") or {}).get("add")):
        value = ", ".join(map(str, added))[:LONGEST_VALUE]
        fix = "remove capabilities.add from spec.securityContext"
        yield RuleViolation(f"{at}.capabilities.add", value, "containers must not add capabilities", fix)
    if rule.require_run_as_non_root:
        user = own.get("runAsUser", of_pod.get("runAsUser"))
        non_root = own.get("runAsNonRoot", of_pod.get("runAsNonRoot"))
        if user == 0:
            fix = "set another user in spec.podSecurityContext.runAsUser"
            yield RuleViolation(f"{at}.runAsUser", "0", "containers must not run as root", fix)
        elif not non_root and not user:
            fix = "set spec.podSecurityContext.runAsNonRoot to true"
            yield RuleViolation(f"{at}.runAsNonRoot", "not set", "containers must not run as root", fix)
