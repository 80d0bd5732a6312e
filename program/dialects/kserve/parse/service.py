"""Parses an LLMInferenceService into desired state. Pure.

The steps: convert it to v1alpha2, validate it, combine it with presets and base configs, then describe pods and routes.
On hosts only the fields that a process needs are used.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubeapi.json_types import Json
from program.desired import keys
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem
from program.desired.keys import ServiceKey, is_dns_label, owner_of
from program.desired.model import DesiredModel, ModelFormat, ModelSource, SourceKind
from program.desired.service import DesiredService
from program.desired.workloads import Certificate, FrontService, ModelArtifact, PodSet, Workloads
from program.dialects.annotations import Annotated, not_in_workloads, read_annotations
from program.dialects.crds.reading import check_shape
from program.dialects.dialect import Lookup, Parsed
from program.dialects.hosts.service import on_host
from program.dialects.kserve import naming
from program.dialects.kserve.configuration.combine import combined
from program.dialects.kserve.conversion import HUB, SPOKE, to_hub
from program.dialects.kserve.hosted import engine_of, hosted
from program.dialects.kserve.parse.counted import with_counted
from program.dialects.kserve.parse.credentials import ambiguous_credentials, missing_certificates
from program.dialects.kserve.parse.devices import claim_template, devices_of
from program.dialects.kserve.parse.lora import Adapter, adapters
from program.dialects.kserve.parse.scaling import own_scaler
from program.dialects.kserve.parse.source import model_address, source_of
from program.dialects.kserve.parse.storage import MODELS, Weights
from program.dialects.kserve.parse.subject import MAIN, Subject, is_stopped, main_container
from program.dialects.kserve.parse.workload import ServingPods, prefill_pods, serving_pods
from program.dialects.kserve.router.route import route_of
from program.dialects.kserve.router.scheduler import Scheduler, scheduler_of
from program.dialects.kserve.schema.service import ServiceSpec
from program.dialects.kserve.schema.validation import check
from program.dialects.kserve.unsupported import unsupported_fields
from program.dialects.pods.engine import ASKED, argv_of, mode_of, served_name_of, settings_of, wants_check
from program.dialects.pods.gpus import gpu_of, ranks_problem
from program.dialects.request_scaling import OwnScaler, check_metrics, request_scaling, without_effect

PORT = 8000
"""Port of the Service in front of the pods, and of the serving process in each of them."""


def parse_service(cr: Json, look: Lookup) -> Parsed:
    """Parse a service and everything that it refers to. Raises SpecInvalid with the path of an invalid field."""
    check_shape(cr)
    cr = to_hub(cr)
    version = cr.get("apiVersion") or ""
    if version != HUB:
        raise SpecInvalid(field="apiVersion", why=f"`{version[:64]}` is not known; write {HUB}, or {SPOKE}")
    metadata = cr["metadata"]
    name = str(metadata["name"])
    if not is_dns_label(name):
        raise SpecInvalid(
            field="metadata.name",
            why=f"`{name[:64]}` cannot be part of the names of its Services; use up to 63 of a-z, 0-9 and `-`",
        )
    own = check(cr)
    annotations: dict[str, str] = metadata.get("annotations") or {}
    annotated = read_annotations(annotations)
    subject = Subject(cr=cr, combined=combined(cr, look), look=look)
    if on_host(annotated):
        return hosted(subject, annotated)
    return _in_pods(subject, annotated, own)


def _in_pods(subject: Subject, annotated: Annotated, own: ServiceSpec) -> Parsed:
    spec = subject.spec
    loaded = adapters(spec)
    weights = _weights(subject, loaded)
    devices = devices_of(subject)
    serving, prefill = serving_pods(subject, weights, devices), prefill_pods(subject, weights, devices)
    scheduler = scheduler_of(subject, weights)
    route, left_out = route_of(subject, loaded)
    services = (_workload_service(subject), *scheduler.services)
    sets = _sets(serving, prefill, scheduler)
    sets = with_counted(
        subject,
        sets,
        lambda other: _sets(
            serving_pods(other, weights, devices), prefill_pods(other, weights, devices), scheduler_of(other, weights)
        ),
    )
    access = tuple(a for a in (serving.access, prefill.access if prefill is not None else None) if a is not None)
    main = main_container(_front(serving.pods)["spec"], field="spec.template")
    workloads = Workloads(
        pods=sets,
        services=services,
        access=(*access, *scheduler.access),
        pool=scheduler.pool,
        route=route,
        certificate=certificate_of(subject, services),
        claim_templates=(claim_template(subject, devices),) if devices is not None else (),
        artifacts=_artifacts(subject, weights, loaded),
    )
    problems: list[Problem | None] = [*left_out, *unsupported_fields(subject, own, weights)]
    problems.extend(not_in_workloads(subject.annotations))
    problems.append(_ranks(serving.pods, "spec", subject.at("parallelism")))
    if prefill is not None:
        problems.append(_ranks(prefill.pods, "spec.prefill", subject.at("prefill", "parallelism")))
    account = str(subject.at("template", "serviceAccountName") or "")
    if weights is not None and weights.model.is_fetched:
        problems.append(ambiguous_credentials(subject, account))
    if weights is not None and weights.fetched:
        problems.append(missing_certificates(subject, {each.scheme for each in weights.fetched}, account))
    engine = engine_of(main)
    mode = mode_of(engine, main)
    scaler, of_prefill = _own_scalers(subject)
    if of_prefill is not None and annotated.scale_by_requests:
        check_metrics(of_prefill)
    desired = DesiredService(
        key=ServiceKey("kserve", subject.namespace, subject.name),
        owner=owner_of(subject.cr),
        generation=int(subject.cr["metadata"].get("generation") or 0),
        model=DesiredModel(name=subject.model_name, source=_source(subject, weights), format=ModelFormat.CUSTOM),
        engine=settings_of(engine if engine in ASKED else ""),
        image=main.get("image"),
        replicas=1 if serving.pods.replicas is None else serving.pods.replicas,
        container_port=_port(main),
        gpu=gpu_of(serving.pods),
        workloads=workloads,
        suspended=is_stopped(subject.cr),
        mode=mode or "chat",
        sleep=annotated.sleep if annotated.scale_by_requests else None,
        by_requests=request_scaling(
            subject.annotations,
            annotated,
            replicas=1 if serving.pods.replicas is None else serving.pods.replicas,
            own=scaler,
        ),
        served_name=served_name_of(engine, main),
        completion_check=wants_check(
            subject.annotations, engine, workloads, mode, annotated=annotated.completion_check
        ),
        drift=annotated.drift,
        adopt=subject.annotations.get(keys.ANNOTATION_ADOPT) == "true",
    )
    problems += [*without_effect(scaler, desired.by_requests), *without_effect(of_prefill, desired.by_requests)]
    return Parsed(desired=desired, unsupported=tuple(p for p in problems if p is not None))


def _own_scalers(subject: Subject) -> tuple[OwnScaler | None, OwnScaler | None]:
    """Return the autoscalers that the service describes, of its serving and of its prefill pods."""
    of_prefill = own_scaler(subject.at("prefill", "scaling"), field="spec.prefill.scaling", prefill=True)
    return own_scaler(subject.at("scaling"), field="spec.scaling"), of_prefill


def _ranks(pods: PodSet, field: str, parallelism: Json | None) -> Problem | None:
    """Return the problem that the ranks of `parallelism` and arguments do not match one pod's GPUs; None if they do."""
    main = main_container(pods.template["spec"], field=f"{field}.template")
    words = [*argv_of(main), str(main.get("image") or "")]
    engine = "sglang" if "sglang" in " ".join(words).lower() else "vllm"
    sizes = parallelism or {}
    copies = sizes.get("dataLocal") or sizes.get("data")
    given = {"--tensor-parallel-size": sizes.get("tensor"), "--pipeline-parallel-size": sizes.get("pipeline")}
    given["--data-parallel-size"] = copies
    named = [word for flag, size in given.items() if size for word in (flag, str(size))]
    at = f"{field}.parallelism" if named else f"{field}.template.containers[{MAIN}].args"
    return ranks_problem(pods, engine, MAIN, field=at, named=named)


def _sets(serving: ServingPods, prefill: ServingPods | None, scheduler: Scheduler) -> tuple[PodSet, ...]:
    return (serving.pods, *((prefill.pods,) if prefill is not None else ()), *scheduler.pods)


def _weights(subject: Subject, loaded: tuple[Adapter, ...]) -> Weights | None:
    """Return the weights of the pods; None if the service disables this and the pods fetch them themselves."""
    if subject.at("storageInitializer", "enabled") is False:
        return None
    uri = str(subject.at("model", "uri") or "")
    if not uri:
        raise SpecInvalid(field="spec.model.uri", why="is missing; set it in the service, or in a config of baseRefs")
    address = model_address(uri, subject.annotations, subject.settings.storage, field="spec.model.uri")
    return Weights(model=address, adapters=loaded)


def _source(subject: Subject, weights: Weights | None) -> ModelSource:
    if weights is not None:
        return source_of(weights.model)
    return ModelSource(kind=SourceKind.OTHER, address=str(subject.at("model", "uri") or ""))


def _front(pods: PodSet) -> Json:
    """Return the template of the pods that receive requests."""
    if pods.group is not None and pods.group.leader is not None:
        return pods.group.leader
    return pods.template


def _port(main: Json) -> int | None:
    ports = main.get("ports") or ()
    return int(ports[0]["containerPort"]) if ports else None


def _workload_service(subject: Subject) -> FrontService:
    """Return the Service in front of all pods that answer requests. Every service has one."""
    scheme = "https" if subject.settings.tls else "http"
    given = {str(key): str(value) for key, value in (subject.at("labels") or {}).items()}
    return FrontService(
        part="main",
        name=naming.workload_service(subject.name),
        labels={**given, **naming.of_component(subject.name, naming.WORKLOAD)},
        annotations=naming.own_annotations(subject.at("annotations")),
        selector=naming.behind_service(subject.name),
        ports=({"name": scheme, "protocol": "TCP", "appProtocol": scheme, "port": PORT, "targetPort": PORT},),
    )


def _artifacts(subject: Subject, weights: Weights | None, loaded: tuple[Adapter, ...]) -> tuple[ModelArtifact, ...]:
    uri = str(subject.at("model", "uri") or "")
    path = MODELS if weights is not None else ""
    return (
        ModelArtifact(role="main", name=subject.model_name, address=uri, path=path),
        *(
            ModelArtifact(role="adapter", name=adapter.name, address=adapter.address.written, path=adapter.path)
            for adapter in loaded
        ),
    )


_DOMAIN = "cluster.local"


def certificate_of(subject: Subject, services: Iterable[FrontService]) -> Certificate:
    """Return the certificate for localhost and for all DNS names of each Service in front of the pods."""
    names = ["localhost"]
    for service in services:
        local = f"{service.name}.{subject.namespace}"
        names.extend((service.name, local, f"{local}.svc", f"{local}.svc.{_DOMAIN}"))
    return Certificate(
        secret=naming.certificates(subject.name),
        labels=naming.of_component(subject.name, naming.WORKLOAD),
        dns_names=tuple(names),
        ip_addresses=("127.0.0.1",),
        renewal_annotations=subject.settings.expiration_annotations,
    )
