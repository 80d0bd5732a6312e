"""Built-in rules about where things are: sources of models, namespaces, hosts. Pure; `in_force` asks."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from components.policies.matching import fits, told_source
from components.policies.schema import Hosts, Namespaces, Sources
from components.policies.workload_rules import Finding, Subject
from program.desired.keys import ANNOTATION_HOST, ANNOTATION_HOST_SELECTOR
from program.desired.model import DesiredModel, SourceKind


def sources(subject: Subject, rule: Sources) -> Iterator[Finding]:
    """Where the model, and the draft model of speculative decoding, come from."""
    for model in (subject.desired.model, subject.desired.draft):
        if model is not None:
            yield from _source(model, rule)


def _source(model: DesiredModel, rule: Sources) -> Iterator[Finding]:
    field, value = f"Model/{model.name} spec.source", told_source(model.source.address)
    scheme = _scheme(model)
    if rule.schemes and scheme not in rule.schemes:
        allowed = ", ".join(rule.schemes)
        yield Finding(field, value, f"models come by {allowed}", f"use a source that begins with one of {allowed}")
    if rule.hosts and scheme in ("http", "https"):
        addresses = {model.source.address, model.source.download_address}
        unknown = sorted(host for host in map(_host, addresses) if not fits(host, rule.hosts))
        if unknown:
            allowed = ", ".join(rule.hosts)
            words = f"models come from hosts {allowed}"
            yield Finding(field, value, words, f"use a copy of the model on one of them instead of {unknown[0]}")
    if rule.patterns and not fits(model.source.address, rule.patterns):
        allowed = ", ".join(rule.patterns)
        yield Finding(field, value, f"sources of models look like {allowed}", "use a source that does")
    if rule.require_sha256 and not model.sha256:
        yield Finding(
            f"Model/{model.name} spec.sha256",
            "not set",
            "models are pinned by their SHA-256",
            "set spec.sha256 of the Model to that of the file",
        )


def _scheme(model: DesiredModel) -> str:
    """Name the scheme as a policy does, of addresses without one too (`org/repo`, `/models/a.gguf`)."""
    before, separator, _ = model.source.address.partition("://")
    if separator:
        return before.lower()
    return "hf" if model.source.kind is SourceKind.REPOSITORY else model.source.kind.value


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def namespaces(subject: Subject, rule: Namespaces) -> Iterator[Finding]:
    """Where services may be, and which PriorityClass their pods may have."""
    namespace = subject.key.namespace
    if rule.allowed and not fits(namespace, rule.allowed):
        allowed = ", ".join(rule.allowed)
        words = f"services are in namespaces {allowed}"
        yield Finding("metadata.namespace", namespace, words, "make the service in one of them")
    wanted = subject.desired.pod.priority_class_name
    if rule.priority_classes and subject.desired.host_placement is None and wanted not in rule.priority_classes:
        allowed = ", ".join(rule.priority_classes)
        field = "spec.priorityClassName" if (subject.cr.get("spec") or {}).get("priorityClassName") else "spec.priority"
        yield Finding(field, wanted, f"pods have one of the PriorityClasses {allowed}", "choose one of them")


def hosts(subject: Subject, rule: Hosts) -> Iterator[Finding]:
    """Which hosts a service may run on."""
    placement = subject.desired.host_placement
    if placement is None:
        return
    field = f"metadata.annotations[{ANNOTATION_HOST if placement.pinned else ANNOTATION_HOST_SELECTOR}]"
    if not rule.allowed:
        yield Finding(field, placement.host or "a host", "no service runs on a host", "let it run in pods")
        return
    allowed = ", ".join(rule.allowed)
    for host in dict.fromkeys(filter(None, placement.hosts)):
        if not fits(host, rule.allowed):
            fix = f"choose hosts among {allowed}"
            yield Finding(field, host, f"services run on hosts {allowed} only", fix)
