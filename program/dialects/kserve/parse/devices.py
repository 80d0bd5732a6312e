"""Devices by dynamic resource allocation, from annotations of an LLMInferenceService. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.workloads import ClaimTemplate
from program.dialects.annotation_values import is_name
from program.dialects.kserve import naming
from program.dialects.kserve.parse.pod_draft import PodDraft
from program.dialects.kserve.parse.subject import MAIN, Subject

PREFIX = "serving.kserve.io/exp-dra-"
CLASS = f"{PREFIX}device-class"
COUNT = f"{PREFIX}device-count"
SELECTOR = f"{PREFIX}cel-selector"
CONTAINER = f"{PREFIX}container-name"
KNOWN = (CLASS, COUNT, SELECTOR, CONTAINER)
"""All annotations of this feature."""
CLAIM = "managed-device"
"""Name of the claim within a pod."""

_NUMBER = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


@dataclass(frozen=True)
class Devices:
    """The devices that each pod asks for."""

    device_class: str
    count: int = 1
    selector: str = ""
    container: str = MAIN
    template: str = ""
    """Name of the ResourceClaimTemplate."""


def devices_of(subject: Subject) -> Devices | None:
    """Read the annotations; None if there are none. Raises SpecInvalid for an invalid value."""
    written = {name: subject.annotations.get(name, "") for name in KNOWN}
    if not any(written.values()):
        return None
    if not is_name(written[CLASS]):
        raise _invalid(CLASS, f"`{written[CLASS][:64]}` is not the name of a DeviceClass")
    if written[COUNT] and _NUMBER.fullmatch(written[COUNT]) is None:
        raise _invalid(COUNT, f"`{written[COUNT][:64]}` is not a number from 1 to 9999")
    return Devices(
        device_class=written[CLASS],
        count=int(written[COUNT] or 1),
        selector=written[SELECTOR],
        container=written[CONTAINER] or MAIN,
        template=naming.devices(subject.name),
    )


def claim_template(subject: Subject, devices: Devices) -> ClaimTemplate:
    """Return the template from which Kubernetes creates a claim for each pod."""
    exactly: Json = {
        "deviceClassName": devices.device_class,
        "allocationMode": "ExactCount",
        "count": devices.count,
    }
    if devices.selector:
        exactly["selectors"] = [{"cel": {"expression": devices.selector}}]
    return ClaimTemplate(
        name=devices.template,
        labels=naming.of_component(subject.name, naming.WORKLOAD),
        spec={"spec": {"devices": {"requests": [{"name": "device", "exactly": exactly}]}}},
    )


def claim_devices(draft: PodDraft, devices: Devices) -> None:
    """Add the claim to a pod and to one of its containers. Raises SpecInvalid if no container has the name."""
    if not draft.has_container(devices.container):
        raise _invalid(CONTAINER, f"no container of {draft.field} is named `{devices.container[:64]}`")
    draft.append("resourceClaims", {"name": CLAIM, "resourceClaimTemplateName": devices.template})
    container = draft.container(devices.container)
    known = (container.get("resources") or {}).get("claims") or ()
    container.set_within("resources", claims=[*known, {"name": CLAIM}])


def _invalid(annotation: str, why: str) -> SpecInvalid:
    return SpecInvalid(field=f"metadata.annotations[{annotation}]", why=why)
