"""Lists the fields of an LLMInferenceService in pods that have no effect. Pure.

KServe accepts most of these fields and ignores them.
"""

from __future__ import annotations

from collections.abc import Iterator

from program.desired.facts import Problem, unsupported_field
from program.desired.keys import ANNOTATION_SCALE_BY
from program.dialects.crds.reading import unknown_fields
from program.dialects.kserve import naming
from program.dialects.kserve.parse.devices import KNOWN as DEVICE_ANNOTATIONS
from program.dialects.kserve.parse.devices import PREFIX as DEVICE_PREFIX
from program.dialects.kserve.parse.scaling import scaler_fault
from program.dialects.kserve.parse.storage import INITIALIZER, Weights
from program.dialects.kserve.parse.subject import MAIN, Subject, value_at
from program.dialects.kserve.router.picker_config import DEFAULT_SINCE, FIELD, deprecations
from program.dialects.kserve.router.picker_migration import picker_version
from program.dialects.kserve.router.scheduler import CONFIG_FLAGS
from program.dialects.kserve.schema.service import ServiceSpec

_OF_PICKER = ("template", "config", "replicas", "tokenizer", "labels", "annotations")


def unsupported_fields(subject: Subject, own: ServiceSpec, weights: Weights | None) -> Iterator[Problem]:
    """List the fields without effect. `own` is the service's own spec as it was read."""
    for path, _ in unknown_fields(own, field="spec"):
        yield unsupported_field(path, "is not a field of an LLMInferenceService")
    for name in subject.annotations:
        if name.startswith(DEVICE_PREFIX) and name not in DEVICE_ANNOTATIONS:
            known = ", ".join(each.removeprefix(DEVICE_PREFIX) for each in DEVICE_ANNOTATIONS)
            yield unsupported_field(
                f"metadata.annotations[{name}]", f"is not a known annotation; the known ones are {known}"
            )
    if (
        weights is not None
        and value_at(subject.at("model", "confidential"), "enabled")
        and not weights.model.is_fetched
    ):
        why = f"has no effect with `{weights.model.scheme}://`, because only downloaded models are decrypted"
        yield unsupported_field("spec.model.confidential", why)
    yield from _initializers(subject, weights)
    yield from _router(subject)
    yield from _picker(subject)
    by_requests = bool(subject.annotations.get(ANNOTATION_SCALE_BY))
    for field, workload in (("spec", subject.spec), ("spec.prefill", subject.at("prefill"))):
        if workload and not by_requests and (fault := scaler_fault(subject, workload, field=field)) is not None:
            yield fault


def _initializers(subject: Subject, weights: Weights | None) -> Iterator[Problem]:
    """Yield the user's fields of the container that fetches models, except image, resources and variables."""
    fetched = weights is not None and weights.fetched
    for path in (("template",), ("worker",), ("prefill", "template"), ("prefill", "worker")) if fetched else ():
        for index, container in enumerate(value_at(subject.combined.own, *path, "initContainers") or ()):
            for name in ("command", "args") if container.get("name") == INITIALIZER else ():
                if container.get(name):
                    field = f"{'.'.join(('spec', *path))}.initContainers[{index}].{name}"
                    yield unsupported_field(field, f"has no effect: model.uri sets what {INITIALIZER} fetches")


def _picker(subject: Subject) -> Iterator[Problem]:
    scheduler = subject.at("router", "scheduler")
    inline = value_at(scheduler, "config", "inline")
    containers = value_at(scheduler, "template", "containers") or ()
    main = next((each for each in containers if each.get("name") == MAIN), None)
    if main is None or value_at(scheduler, "pool", "ref"):
        return
    version = picker_version(str(main.get("image") or ""), scheduler.get("annotations") or {})
    words = [str(word) for field in ("command", "args") for word in main.get(field) or ()]
    is_told = inline is not None or any(word.startswith(CONFIG_FLAGS) for word in words)
    if not is_told and version is not None and version < DEFAULT_SINCE:
        old, new = (".".join(map(str, each)) for each in (version, DEFAULT_SINCE))
        why = (
            f"is missing: the default configuration needs an endpoint picker from version {new}, and the image has "
            f"version {old}; write one"
        )
        yield unsupported_field(FIELD, f"{why} for that version, or use a preset with a newer image")
    if inline is None or value_at(scheduler, "tokenizer", "template"):
        return  # with a tokenizer, old plugins are rewritten
    for told in deprecations(inline, version):
        yield Problem(reason="DeprecatedPlugin", message=told, field=FIELD, terminal=True)


def _router(subject: Subject) -> Iterator[Problem]:
    route, scheduler = subject.at("router", "route"), subject.at("router", "scheduler")
    if subject.at("router", "ingress") is not None:
        service = naming.workload_service(subject.name)
        why = (
            f"has no effect: Herdsman does not change Ingresses; point the Ingress at Service {service}, port "
            f"8000, yourself"
        )
        yield unsupported_field("spec.router.ingress", why)
    if subject.at("router", "gateway") is not None and route is None:
        why = "has no effect without a route; add `route: {}` to spec.router to create a route from these gateways"
        yield unsupported_field("spec.router.gateway", why)
    if subject.at("prefill") is not None and scheduler is None and not value_at(route, "http", "refs"):
        why = (
            "has no effect without an endpoint picker, which would send prompts to these pods: they get whole "
            "requests like the other pods; add `scheduler: {}` to spec.router"
        )
        yield unsupported_field("spec.prefill", why)
    if value_at(scheduler, "pool", "ref"):
        beside = [name for name in _OF_PICKER if value_at(scheduler, name) is not None]
        if value_at(scheduler, "pool", "spec") is not None:
            beside.append("pool.spec")
        for name in beside:
            why = "has no effect together with pool.ref, because an existing pool already has an endpoint picker"
            yield unsupported_field(f"spec.router.scheduler.{name}", why)
