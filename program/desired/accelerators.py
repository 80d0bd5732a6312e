"""Decides which extended resources count accelerators, and of which vendor. Pure.

The dialects, the converters, quotas and policies call it; the project has no other classifier. Resources that accompany
an accelerator (its memory, its shares in thousandths, a network card) are not accelerators, because their amounts do
not count devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from program.desired.model import GPU_RESOURCES, GpuVendor

_NAMES: dict[str, GpuVendor] = {
    **{name: vendor for vendor, name in GPU_RESOURCES.items()},
    "nvidia.com/gpu.shared": GpuVendor.NVIDIA,
    "nvidia.com/pgpu": GpuVendor.NVIDIA,
    "devic.es/dri-render": GpuVendor.AMD,
    "gpu.intel.com/xe": GpuVendor.INTEL,
    "intel.com/gpu": GpuVendor.INTEL,
    **dict.fromkeys(
        (
            *("google.com/tpu", "cloud-tpus.google.com/v2", "cloud-tpus.google.com/v3", "habana.ai/gaudi"),
            *("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"),
            *("hygon.com/dcu", "enflame.com/gcu", "kunlunxin.com/xpu", "cambricon.com/mlu", "qualcomm.com/qaic"),
            *("rebellions.ai/ATOM", "tenstorrent.com/n150", "tenstorrent.com/n300"),
        ),
        GpuVendor.OTHER,
    ),
}
_FORMS: tuple[tuple[re.Pattern[str], GpuVendor], ...] = (
    (re.compile(r"nvidia\.com/mig-[0-9]+c?(\.[0-9]+)?g\.[A-Za-z0-9.+]+", re.ASCII), GpuVendor.NVIDIA),
    (re.compile(r"amd\.com/[a-z]+_nps[0-9]+", re.ASCII), GpuVendor.AMD),
    (re.compile(r"huawei\.com/Ascend[0-9A-Za-z-]+", re.ASCII), GpuVendor.OTHER),
    (re.compile(r"furiosa\.ai/[a-z0-9-]+", re.ASCII), GpuVendor.OTHER),
    (re.compile(r"[a-z0-9][a-z0-9.-]*\.[a-z]+/(gpu|npu|tpu)", re.ASCII), GpuVendor.OTHER),
)
"""Resources whose names have a variable part: partitions of a GPU, generations, custom device plugins."""


def vendor_of(resource: str) -> GpuVendor | None:
    """Return the vendor of the accelerators that a resource counts, whole or in parts; None if it counts none."""
    known = _NAMES.get(resource)
    if known is not None:
        return known
    return next((vendor for form, vendor in _FORMS if form.fullmatch(resource)), None)


def is_accelerator(resource: str) -> bool:
    """Return whether an extended resource counts accelerators, or parts of them."""
    return vendor_of(resource) is not None


def count_of(amounts: Mapping[str, str]) -> int:
    """Count the accelerators among amounts of resources. An amount that is not a whole number counts as 0."""
    found = (str(amount) for resource, amount in amounts.items() if is_accelerator(resource))
    return sum(int(text) for text in found if text.isascii() and text.isdecimal() and len(text) < 7)
