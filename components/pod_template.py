"""A service's pod: the engine's container, its weights, its hardware, and what the user said about pods.

Called by `components.deployment`; asks `program.runtimes` for the engine's part and `components.model_files` for the
weights.
"""

from __future__ import annotations

from components import naming
from components.model_files import ModelFiles, model_files
from components.object_metadata import workload_labels
from components.options import RenderOptions
from program.desired.base import JsonObject
from program.desired.errors import SpecInvalid
from program.desired.model import Gpu
from program.desired.service import DesiredService
from program.runtimes import Runtime, runtime_for

BIND_ADDRESS = "::"
"""IPv6's any address takes IPv4 connections too."""


def container_port(desired: DesiredService) -> int:
    """Return the port that the engine really listens on; Services, probes and arguments all take it from here."""
    runtime = runtime_for(desired.engine)
    if desired.container_port is not None:
        return desired.container_port
    if runtime.takes_port and desired.endpoint.port is not None:
        return desired.endpoint.port
    return runtime.default_port


def pod_template(desired: DesiredService, options: RenderOptions) -> JsonObject:
    """Build the pod template.

    Raises SpecInvalid when the runtime has no image of its own and the user names none.
    """
    pod = desired.pod
    files = model_files(desired, options)
    runtime = runtime_for(desired.engine)
    spec: JsonObject = {
        "containers": [_container(desired, runtime, files)],
        "securityContext": _pod_security(desired, options),
        "priorityClassName": pod.priority_class_name,
    }
    if files.init_containers:
        spec["initContainers"] = list(files.init_containers)
    if files.volumes:
        spec["volumes"] = list(files.volumes)
    if tolerations := [*_gpu_tolerations(desired.gpu), *pod.tolerations]:
        spec["tolerations"] = tolerations
    if pod.node_selector:
        spec["nodeSelector"] = pod.node_selector
    if pod.runtime_class_name:
        spec["runtimeClassName"] = pod.runtime_class_name
    if pod.image_pull_secrets:
        spec["imagePullSecrets"] = _last_of_each_name(pod.image_pull_secrets)
    if not runtime.service_links:
        spec["enableServiceLinks"] = False
    return {
        "metadata": {
            "labels": {**pod.labels, **workload_labels(desired)},
            "annotations": {naming.ANNOTATION_DO_NOT_DISRUPT: "true", **pod.annotations},
        },
        "spec": spec,
    }


def _container(desired: DesiredService, runtime: Runtime, files: ModelFiles) -> JsonObject:
    pod = desired.pod
    port = container_port(desired)
    probes = runtime.probes(port)
    container: JsonObject = {
        "name": runtime.container_name,
        "image": _image(desired, runtime),
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "startupProbe": pod.startup_probe or probes.startup,
        "livenessProbe": pod.liveness_probe or probes.liveness,
        "readinessProbe": pod.readiness_probe or probes.readiness,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": pod.security_context
        if pod.security_context is not None
        else {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if command := desired.command or runtime.command:
        container["command"] = list(command)
    if argv := runtime.argv(desired, model_path=files.path, port=port, host=BIND_ADDRESS):
        container["args"] = argv
    if env := _last_of_each_name((*runtime.env(desired), *pod.env)):
        container["env"] = env
    if files.mounts:
        container["volumeMounts"] = list(files.mounts)
    if resources := _resources(desired):
        container["resources"] = resources
    return container


def _image(desired: DesiredService, runtime: Runtime) -> str:
    image = desired.image or runtime.default_image(desired)
    if not image:
        raise SpecInvalid(field="spec.image", why=f"runtime `{runtime.name}` has no image of its own; name one")
    return image


def _pod_security(desired: DesiredService, options: RenderOptions) -> JsonObject:
    if desired.pod.pod_security_context is not None:
        return desired.pod.pod_security_context
    security: JsonObject = {"seccompProfile": {"type": "RuntimeDefault"}}
    if options.default_fs_group > 0:
        security["fsGroup"] = options.default_fs_group
    return security


def _resources(desired: DesiredService) -> JsonObject:
    requests = {"cpu": desired.pod.cpu_request, "memory": desired.pod.memory_request}
    resources: JsonObject = {}
    if given := {name: quantity for name, quantity in requests.items() if quantity}:
        resources["requests"] = given
    if desired.gpu:
        resources["limits"] = {desired.gpu.resource_name: str(desired.gpu.count)}
    return resources


def _gpu_tolerations(gpu: Gpu | None) -> list[JsonObject]:
    if gpu is None:
        return []
    return [
        {
            "key": gpu.toleration_key or gpu.resource_name,
            "operator": "Equal",
            "value": "present",
            "effect": "NoSchedule",
        }
    ]


def _last_of_each_name(entries: tuple[JsonObject, ...]) -> list[JsonObject]:
    """Keep the last entry of each name, as the kubelet would; server-side apply refuses the same name twice."""
    return list({entry["name"]: entry for entry in entries}.values())
