"""Resolves the GPUs of one replica: the Model's requirements, the service's count, sharing, partitions. Pure.

Raises SpecInvalid with the path of a field that cannot be fulfilled.
"""

from __future__ import annotations

import re
from math import gcd

from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, Gpu, GpuVendor, ModelGpu
from program.desired.quantities import bytes_of
from program.dialects.llmkube.schema.service import GpuSharingSpec, ResourcesSpec

RENDER_DEVICE = "devic.es/dri-render"
"""The extended resource of a GPU's render node, which Vulkan and ROCm builds of llama.cpp use on AMD."""

_SPLIT_MODES = {"layer": "layer", "tensor": "row", "row": "row", "pipeline": "layer", "none": "none"}
_LAYERS = re.compile(r"\s*(\d{1,5})\s*-\s*(\d{1,5})\s*", re.ASCII)
# The names that NVIDIA's device plugin uses in `nvidia.com/mig-<profile>`: `1g.10gb`, and with media engines
# `1g.10gb.me`.
_MIG_PROFILE = re.compile(r"[0-9]+g\.[0-9]+gb(\.me)?", re.ASCII)
_VENDOR_OF = {"rocm": GpuVendor.AMD, "vulkan": GpuVendor.AMD, "intel": GpuVendor.INTEL}
_SHARING = "spec.resources.gpuSharing"


def gpu_of(resources: ResourcesSpec | None, model: DesiredModel) -> Gpu | None:
    """Resolve the GPUs of one replica: the Model's count, else the service's, else one if the Model enables GPUs.

    Resource claims without a count count as one GPU, because only the driver knows how many a claim holds.
    """
    wish = model.gpu or ModelGpu(vendor=_VENDOR_OF.get(model.accelerator, GpuVendor.NVIDIA))
    count = _count(resources, model, wish)
    sharing = (resources.gpu_sharing if resources else None) or GpuSharingSpec()
    if sharing.mode != "exclusive" or sharing.profile or sharing.memory_limit_gib is not None:
        _check_sharing(sharing, wish, count=count)
    if count == 0:
        return None
    backend = wish.backend or ("vulkan" if model.accelerator == "vulkan" else "")
    return Gpu(
        count=count,
        vendor=wish.vendor,
        resource=_resource(sharing, wish),
        toleration_key=wish.toleration_key,
        backend=backend,
        shared=sharing.mode == "shared",
        claims=wish.claims,
        layers=wish.layers,
        split_mode=_SPLIT_MODES[wish.strategy],
        tensor_split=_tensor_split(wish, count=count),
    )


def gpu_memory_of(resources: ResourcesSpec | None, model: DesiredModel, gpu: Gpu | None) -> int | None:
    """Return the declared GPU memory of a replica in bytes. The service's value overrides the Model's."""
    asked = bytes_of(resources.gpu_memory if resources else None, field="spec.resources.gpuMemory")
    if gpu is None:
        return None
    sharing = resources.gpu_sharing if resources else None
    if sharing is not None and sharing.memory_limit_gib is not None:
        return sharing.memory_limit_gib * 2**30
    return asked if asked is not None else (model.gpu.memory_bytes if model.gpu else None)


def _count(resources: ResourcesSpec | None, model: DesiredModel, wish: ModelGpu) -> int:
    asked = resources.gpu if resources else None
    if model.accelerator == "metal":
        return 1
    if wish.count and wish.enabled is not False:
        return wish.count
    if asked is not None:
        return asked
    return 1 if wish.enabled or (wish.claims and wish.enabled is None) else 0


def _resource(sharing: GpuSharingSpec, wish: ModelGpu) -> str:
    if sharing.mode == "partitioned":
        return f"nvidia.com/mig-{sharing.profile}"
    if wish.resource:
        return wish.resource
    return RENDER_DEVICE if wish.vendor is GpuVendor.AMD and wish.backend else ""


def _check_sharing(sharing: GpuSharingSpec, wish: ModelGpu, *, count: int) -> None:
    if sharing.profile and sharing.mode != "partitioned":
        raise SpecInvalid(field=f"{_SHARING}.profile", why="is only valid when mode is partitioned")
    if sharing.memory_limit_gib is not None and sharing.mode != "shared":
        raise SpecInvalid(field=f"{_SHARING}.memoryLimitGiB", why="is only valid when mode is shared")
    if sharing.mode == "exclusive":
        return
    if wish.claims:
        raise SpecInvalid(
            field=f"{_SHARING}.mode",
            why=f"{sharing.mode} cannot be combined with the Model's resource claims, which select the device; use "
            f"exclusive",
        )
    if count != 1:
        raise SpecInvalid(
            field=f"{_SHARING}.mode", why=f"{sharing.mode} needs exactly one GPU, and a replica has {count}"
        )
    if sharing.mode == "shared":
        return
    if wish.vendor is not GpuVendor.NVIDIA:
        raise SpecInvalid(
            field=f"{_SHARING}.mode", why=f"is partitioned (NVIDIA's MIG), and the Model's vendor is {wish.vendor}"
        )
    if wish.resource:
        raise SpecInvalid(
            field=f"{_SHARING}.profile",
            why=f"selects the resource, and the Model's resourceName `{wish.resource}` does too; remove one of the two",
        )
    if not sharing.profile:
        raise SpecInvalid(field=f"{_SHARING}.profile", why="is required when mode is partitioned")
    if not _MIG_PROFILE.fullmatch(sharing.profile):
        raise SpecInvalid(
            field=f"{_SHARING}.profile", why=f"`{sharing.profile[:64]}` is not a MIG profile such as `1g.10gb`"
        )


def split_problem(wish: ModelGpu, *, count: int, at: str) -> tuple[str, str] | None:
    """Return the part of a layer split that is not applied, as field and cause; None if all of it is applied."""
    shares, problem = _layer_split(wish, count=count)
    if problem is None:
        return None
    where, why = problem
    return f"{at}{where}", why if shares else f"{why}; the layers are split evenly over {count} GPUs"


def _tensor_split(wish: ModelGpu, *, count: int) -> tuple[int, ...]:
    """Turn layer ranges into proportions: their sizes, divided by the greatest common divisor; empty means
    equal ones.
    """
    return _layer_split(wish, count=count)[0]


def _layer_split(wish: ModelGpu, *, count: int) -> tuple[tuple[int, ...], tuple[str, str] | None]:
    """Read the ranges. Return the proportions, and the first invalid entry with the cause."""
    if not wish.layer_split or count <= 1 or wish.strategy == "none":
        return (), None
    if len(wish.layer_split) != count:
        return (), ("", f"has {len(wish.layer_split)} ranges for {count} GPUs")
    sizes, end, problem = [], -1, None
    for index, text in enumerate(wish.layer_split):
        match = _LAYERS.fullmatch(text)
        first, last = (int(match[1]), int(match[2])) if match else (0, -1)
        if last < first:
            return (), (f"[{index}]", f"`{text[:64]}` is not a range of layers such as `0-19`")
        if first <= end and problem is None:
            why = "overlaps the range before it; Herdsman uses only the sizes of the ranges, as the shares of the GPUs"
            problem = (f"[{index}]", f"`{text}` {why}")
        sizes.append(last - first + 1)
        end = max(end, last)
    shared = gcd(*sizes)
    return tuple(size // shared for size in sizes), problem
