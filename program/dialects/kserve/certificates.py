"""The certificate that the pods of an LLMInferenceService serve with: for which names it is. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from program.desired.workloads import Certificate, FrontService
from program.dialects.kserve import labels, naming
from program.dialects.kserve.subject import Subject

_DOMAIN = "cluster.local"


def certificate_of(subject: Subject, services: Iterable[FrontService]) -> Certificate:
    """Describe it: for the pods themselves, and for each Service before them in all forms that clients write."""
    names = ["localhost"]
    for service in services:
        local = f"{service.name}.{subject.namespace}"
        names.extend((service.name, local, f"{local}.svc", f"{local}.svc.{_DOMAIN}"))
    return Certificate(
        secret=naming.certificates(subject.name),
        labels=labels.of_component(subject.name, labels.WORKLOAD),
        dns_names=tuple(names),
        ip_addresses=("127.0.0.1",),
        renewal_annotations=subject.settings.expiration_annotations,
    )
