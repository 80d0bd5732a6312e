"""Built-in rules about places: sources of models, namespaces, hosts. Pure; called by `in_force`."""

from __future__ import annotations

from collections.abc import Iterator

from components.policies.matching import fits, told_source
from components.policies.schema import Hosts, Namespaces, Sources
from components.policies.workload_rules import RuleViolation, Subject
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_HOST, ANNOTATION_HOST_SELECTOR
from program.desired.model import DesiredModel, SourceKind
from program.desired.web_address import AddressInvalid, WebAddress


def sources(subject: Subject, rule: Sources) -> Iterator[RuleViolation]:
    """Check the sources of the model, of the draft model of speculative decoding, and of adapters."""
    workloads = subject.desired.workloads
    if workloads is not None:
        for artifact in workloads.artifacts:
            address = artifact.address
            yield from _address(f"{artifact.role} model {artifact.name}", address, _scheme_of(address), rule, {address})
        if rule.require_sha256:
            fix = "use an InferenceService, whose Model has spec.sha256, or exempt the service in the policy"
            yield RuleViolation("spec", "not set", "models must have a SHA-256", fix)
        return
    for model in (subject.desired.model, subject.desired.draft):
        if model is not None:
            yield from _source(model, rule)


def _source(model: DesiredModel, rule: Sources) -> Iterator[RuleViolation]:
    address = model.source.address
    addresses = {address, model.source.download_address}
    yield from _address(f"Model/{model.name} spec.source", address, _scheme(model), rule, addresses)
    if rule.require_sha256 and not model.sha256:
        yield RuleViolation(
            f"Model/{model.name} spec.sha256",
            "not set",
            "models must have a SHA-256",
            "set spec.sha256 of the Model to that of the file",
        )


def _address(field: str, address: str, scheme: str, rule: Sources, fetched: set[str]) -> Iterator[RuleViolation]:
    value = told_source(address)
    if rule.schemes and scheme not in rule.schemes:
        allowed = ", ".join(rule.schemes)
        yield RuleViolation(field, value, f"sources of models must begin with {allowed}", "use one of these sources")
    if rule.hosts and scheme in ("http", "https"):
        unknown = sorted(host for host in map(_host, fetched) if not fits(host, rule.hosts))
        if unknown:
            allowed = ", ".join(rule.hosts)
            words = f"models must come from hosts {allowed}"
            yield RuleViolation(field, value, words, f"use a copy of the model on one of them instead of {unknown[0]}")
    if rule.patterns and not fits(address, rule.patterns):
        allowed = ", ".join(rule.patterns)
        yield RuleViolation(field, value, f"sources of models must match {allowed}", "use a source that matches")


def _scheme(model: DesiredModel) -> str:
    """Return the scheme in a policy's terms, also of addresses without a scheme (`org/repo`, `/models/a.gguf`)."""
    written = _scheme_of(model.source.address, otherwise="")
    return written or ("hf" if model.source.kind is SourceKind.REPOSITORY else model.source.kind.value)


def _scheme_of(address: str, *, otherwise: str = "hf") -> str:
    before, separator, _ = address.partition("://")
    return before.lower() if separator else otherwise


def _host(address: str) -> str:
    try:
        return WebAddress.parse(address).host
    except AddressInvalid:
        return ""


def namespaces(subject: Subject, rule: Namespaces) -> Iterator[RuleViolation]:
    """Check the namespace of a service and the PriorityClass of its pods."""
    namespace = subject.key.namespace
    if rule.allowed and not fits(namespace, rule.allowed):
        allowed = ", ".join(rule.allowed)
        words = f"services must be in namespaces {allowed}"
        yield RuleViolation("metadata.namespace", namespace, words, "create the service in one of these namespaces")
    if not rule.priority_classes or subject.desired.host_placement is not None:
        return
    words = f"pods must have one of the PriorityClasses {', '.join(rule.priority_classes)}"
    if subject.desired.workloads is not None:
        for path, pod in subject.pods():
            own = str(pod.get("priorityClassName") or "")
            if own not in rule.priority_classes:
                yield RuleViolation(f"{path}.priorityClassName", own or "not set", words, "choose one of these classes")
        return
    wanted = subject.desired.pod.priority_class_name
    if wanted not in rule.priority_classes:
        field = "spec.priorityClassName" if (subject.cr.get("spec") or {}).get("priorityClassName") else "spec.priority"
        yield RuleViolation(field, wanted, words, "choose one of these classes")


def hosts(subject: Subject, rule: Hosts) -> Iterator[RuleViolation]:
    """Check the hosts of a service."""
    placement = subject.desired.host_placement
    if placement is None:
        return
    field = f"metadata.annotations[{ANNOTATION_HOST if placement.pinned else ANNOTATION_HOST_SELECTOR}]"
    if not rule.allowed:
        yield RuleViolation(
            field, placement.host or "a host", "services must not run on hosts", "run the service in pods"
        )
        return
    allowed = ", ".join(rule.allowed)
    for host in dict.fromkeys(filter(None, placement.hosts)):
        if not fits(host, rule.allowed):
            fix = f"choose hosts among {allowed}"
            yield RuleViolation(field, host, f"services may run only on hosts {allowed}", fix)


def namespace_of_resource(cr: Json, rule: Namespaces) -> Iterator[RuleViolation]:
    """Check the namespace of a ModelRouter, ModelPool or LoRAAdapter."""
    namespace = str(cr["metadata"].get("namespace") or "")
    if rule.allowed and not fits(namespace, rule.allowed):
        words = f"a {cr['kind']} must be in namespaces {', '.join(rule.allowed)}"
        yield RuleViolation("metadata.namespace", namespace, words, "create it in one of these namespaces")
