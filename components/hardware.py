"""The hardware of a pod: what it asks for, which nodes it goes to, whether a second pod can have it at the same time.

Called by `components.pod_template` and `components.deployment`.
"""

from __future__ import annotations

from collections.abc import Iterable

from components.options import RenderOptions
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.model import Gpu, GpuVendor
from program.desired.service import DesiredService

RENDER_NODE = "devic.es/dri-render"
"""The resource of the generic device plugin for /dev/dri/renderD*, which belongs to a group of the node."""


def resources(desired: DesiredService) -> Json:
    """Build the container's resources. GPUs are limits, CPU and memory requests, as LLMKube has it."""
    pod = desired.pod
    requests = {"cpu": pod.cpu_request, "memory": pod.memory_request, "ephemeral-storage": pod.ephemeral_storage}
    limits = {"ephemeral-storage": pod.ephemeral_storage}
    built: Json = {}
    if desired.gpu and desired.gpu.claims:
        built["claims"] = [{"name": claim["name"]} for claim in desired.gpu.claims]
    elif desired.gpu:
        limits[desired.gpu.resource_name] = str(desired.gpu.count)
    for kind, quantities in (("requests", requests), ("limits", limits)):
        if given := {name: quantity for name, quantity in quantities.items() if quantity}:
            built[kind] = given
    return built


def tolerations(desired: DesiredService) -> list[Json]:
    """Tolerate the taint of GPU nodes, and then what the user says; each toleration once."""
    return once([*_gpu_tolerations(desired.gpu), *desired.pod.tolerations])


def once(written: Iterable[Json]) -> list[Json]:
    """Keep the first of tolerations that mean the same."""
    found: dict[tuple[object, ...], Json] = {}
    for each in written:
        seconds = each.get("tolerationSeconds")
        said = (each.get("key") or "", each.get("operator") or "Equal", each.get("value") or "")
        effect = each.get("effect") or ""
        found.setdefault((*said, effect, seconds), each)
    return list(found.values())


def _gpu_tolerations(gpu: Gpu | None) -> list[Json]:
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


def node_selector(desired: DesiredService, options: RenderOptions) -> dict[str, str]:
    """Select the nodes: those with time-shared GPUs where the service shares one; the user's labels win.

    Raises SpecInvalid when the operator named no such nodes. AMD's render nodes are shared by nature and need none.
    """
    gpu = desired.gpu
    if gpu is None or not gpu.shared or gpu.vendor is GpuVendor.AMD:
        return desired.pod.node_selector
    if not options.shared_gpu_selector:
        raise SpecInvalid(
            field="spec.resources.gpuSharing.mode",
            why="mode `shared` needs nodes whose GPUs are time-shared; none are named (HERDSMAN_SHARED_GPU_SELECTOR)",
        )
    return {**options.shared_gpu_selector, **desired.pod.node_selector}


def supplemental_groups(desired: DesiredService, options: RenderOptions) -> list[int]:
    """List the groups that a pod needs for its devices."""
    uses_render_node = desired.gpu is not None and desired.gpu.resource_name == RENDER_NODE
    return [options.render_group] if uses_render_node and options.render_group > 0 else []


def is_exclusive(gpu: Gpu | None) -> bool:
    """Tell whether a pod holds hardware that the next one would wait for: a GPU, a part of one, a claim."""
    return gpu is not None and not gpu.shared
