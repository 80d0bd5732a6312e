"""Identities: which service, which model, and who owns the objects made for them."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from program.desired.base import Desired

Dialect = Literal["llmkube", "kserve", "llmaz"]

ANNOTATION_ADOPT = "herdsman.dev/adopt"
"""On a service, `"true"`: take over objects of the same names that somebody else made."""
ANNOTATION_HOST = "herdsman.dev/host"
"""On a service: run it as a process on the host of this name."""


class ServiceKey(NamedTuple):
    """Names one service of one dialect; the key of the work queue, of batches and of logical resource names."""

    dialect: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.dialect}/{self.namespace}/{self.name}"


class Owner(Desired):
    """The object that owns what is made for a service, as an ownerReference names it."""

    api_version: str
    kind: str
    name: str
    uid: str


_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def is_label_value(name: str) -> bool:
    """Tell whether `name` fits a label value: at most 63 characters (Kubernetes object names go up to 253)."""
    return len(name) <= 63 and re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", name) is not None


def is_dns_label(name: str) -> bool:
    """Tell whether `name` is an RFC 1123 label, as namespaces and most object names need."""
    return len(name) <= 63 and _DNS_LABEL.fullmatch(name) is not None


def service_dns_name(service: str) -> str:
    """Name the Kubernetes Service: an RFC 1035 label, so dots become dashes and a leading digit gets `s-` before it."""
    name = service.replace(".", "-")
    return f"s-{name}" if name[:1].isdigit() else name
