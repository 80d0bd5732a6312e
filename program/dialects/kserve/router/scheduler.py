"""The endpoint picker of an LLMInferenceService, and its tokenizer. Pure.

For each request, the gateway asks the picker which pod of the pool receives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.workloads import Access, FrontService, PodSet, Pool
from program.dialects.kserve import naming
from program.dialects.kserve.parse.accounts import scheduler_access
from program.dialects.kserve.parse.pod_draft import Container, PodDraft
from program.dialects.kserve.parse.storage import Weights, add_weights, part_mounts
from program.dialects.kserve.parse.subject import Subject, main_container
from program.dialects.kserve.parse.tracing import trace_scheduler
from program.dialects.kserve.router.addresses import CLUSTER_DOMAIN
from program.dialects.kserve.router.picker_config import default_config, flagged_config, given_config
from program.dialects.kserve.router.picker_migration import picker_version, without_old_flags
from program.dialects.kserve.router.pool_group import name_group_of_today
from program.runtimes.flags import without_flags

_FIELD = "spec.router.scheduler"
_ASKED_PORT = "grpc"
"""Name of the port for the gateways' calls."""
_SERVED_PORTS = (_ASKED_PORT, "grpc-health", "metrics", "zmq")
_CONFIG_TEXT = "--config-text"
CONFIG_FLAGS = (_CONFIG_TEXT, "--config-file")
_TOKENIZER_PATH = "/mnt/models/base"
_RENDER_PORT = "render-http"


@dataclass(frozen=True)
class Scheduler:
    """The objects that select the best pod for each request."""

    pods: tuple[PodSet, ...] = ()
    services: tuple[FrontService, ...] = ()
    access: tuple[Access, ...] = ()
    pool: Pool | None = None


def scheduler_of(subject: Subject, weights: Weights | None) -> Scheduler:
    """Return the endpoint picker's objects; none if the service has no picker, or uses a pool of the user.

    Raises SpecInvalid for an invalid configuration.
    """
    scheduler = subject.at("router", "scheduler")
    if scheduler is None or (scheduler.get("pool") or {}).get("ref"):
        return Scheduler()
    account = str((scheduler.get("template") or {}).get("serviceAccountName") or naming.scheduler_account(subject.name))
    own = naming.of_component(subject.name, naming.SCHEDULER)
    given = {**_texts(scheduler.get("labels")), **own}
    draft = _picker(subject, scheduler, account)
    pods = PodSet(
        part="scheduler",
        name=naming.scheduler(subject.name),
        labels=given,
        selector=own,
        template=_template(draft, given, naming.own_annotations(scheduler.get("annotations"))),
        replicas=int(scheduler["replicas"]) if scheduler.get("replicas") is not None else 1,
        # Two pickers at the same time would not know each other's requests.
        strategy={"type": "Recreate"},
    )
    pool = scheduler.get("pool") or {}
    pool_spec: Json = pool.get("spec") or {}
    service = FrontService(
        part="scheduler",
        name=str((pool_spec.get("endpointPickerRef") or {}).get("name") or naming.scheduler_service(subject.name)),
        labels=own,
        selector=own,
        ports=_ports(main_container(scheduler.get("template"), field=f"{_FIELD}.template"), pool_spec),
    )
    tokenizer = _tokenizer(subject, scheduler, weights)
    return Scheduler(
        pods=(pods, *(t for t, _ in tokenizer)),
        services=(service, *(s for _, s in tokenizer)),
        access=(scheduler_access(subject, account),),
        pool=Pool(name=naming.pool(subject.name), labels=own, spec=pool_spec),
    )


def _picker(subject: Subject, scheduler: Json, account: str) -> PodDraft:
    draft = PodDraft(scheduler.get("template") or {}, field=f"{_FIELD}.template")
    draft.set("serviceAccountName", account)
    main = draft.main
    name_group_of_today(main)
    if int(scheduler.get("replicas") or 1) > 1 and not main.has_flag("--ha-enable-leader-election"):
        main.add_args("--ha-enable-leader-election")
    _configure(main, subject, scheduler)
    trace_scheduler(main, subject)
    return draft


def _configure(main: Container, subject: Subject, scheduler: Json) -> None:
    """Set the picker's configuration: the user's object, else the user's flag, else the default."""
    inline = (scheduler.get("config") or {}).get("inline")
    version = picker_version(str(main.get("image") or ""), scheduler.get("annotations") or {})
    for field in ("command", "args"):
        if words := main.get(field):
            main.set(field, without_old_flags(list(words), version))
    if inline is not None:
        args = without_flags(main.args, *CONFIG_FLAGS)
        text = given_config(
            inline,
            tls=subject.settings.tls,
            version=version,
            tokenizer=_tokenizer_url(subject, scheduler),
            counted=subject.counted,
        )
        main.set("args", [*args, "--config-text", text])
    elif not main.has_flag(*CONFIG_FLAGS):
        text = default_config(
            prefill=subject.at("prefill") is not None,
            adapters=bool(subject.at("model", "lora", "adapters")),
            tls=subject.settings.tls,
        )
        main.add_args("--config-text", text)
    else:
        url, counted = _tokenizer_url(subject, scheduler), subject.counted
        main.set("args", list(_rewrite_config(main.args, lambda text: flagged_config(text, version, url, counted))))


def _tokenizer_url(subject: Subject, scheduler: Json) -> str:
    """Return the URL of the service's tokenizer; empty if it has none."""
    template = (scheduler.get("tokenizer") or {}).get("template")
    port = _container_ports(main_container(template, field=_FIELD)).get(_RENDER_PORT) if template else None
    if port is None:
        return ""
    scheme = "https" if subject.settings.tls else "http"
    return f"{scheme}://{naming.tokenizer(subject.name)}.{subject.namespace}.svc.{CLUSTER_DOMAIN}:{port}"


def _rewrite_config(args: list[str], rewrite: Callable[[str], str]) -> Iterator[str]:
    before = ""
    for arg in args:
        flag, equals, text = arg.partition("=")
        if before == _CONFIG_TEXT:
            yield rewrite(arg)
        elif equals and flag == _CONFIG_TEXT:
            yield f"{flag}={rewrite(text)}"
        else:
            yield arg
        before = arg


def _tokenizer(subject: Subject, scheduler: Json, weights: Weights | None) -> tuple[tuple[PodSet, FrontService], ...]:
    template = (scheduler.get("tokenizer") or {}).get("template")
    if template is None:
        return ()
    own = naming.of_component(subject.name, naming.TOKENIZER)
    name = naming.tokenizer(subject.name)
    draft = PodDraft(template, field=f"{_FIELD}.tokenizer.template")
    if weights is not None:
        own_weights = Weights(model=weights.model, path=_TOKENIZER_PATH)
        add_weights(draft, own_weights, subject)
        part_mounts(draft, own_weights)
    pods = PodSet(part="tokenizer", name=name, labels=own, selector=own, template=_template(draft, own, {}))
    port = _container_ports(main_container(template, field=draft.field)).get(_RENDER_PORT)
    if port is None:
        raise SpecInvalid(field=f"{draft.field}.containers", why=f"has no port named `{_RENDER_PORT}`")
    service = FrontService(
        part="tokenizer",
        name=name,
        labels=own,
        selector=own,
        ports=({"name": _RENDER_PORT, "protocol": "TCP", "port": port, "targetPort": _RENDER_PORT},),
    )
    return ((pods, service),)


def _ports(main: Json, pool_spec: Json) -> tuple[Json, ...]:
    """Return the Service's ports. Gateways call the port that the pool names, whatever port the picker listens on."""
    known = _container_ports(main)
    served = {name: known[name] for name in _SERVED_PORTS if name in known}
    asked = ((pool_spec.get("endpointPickerRef") or {}).get("port") or {}).get("number")
    if asked is not None and int(asked) not in served.values():
        served = {_ASKED_PORT: int(asked), **{name: port for name, port in served.items() if name != _ASKED_PORT}}
    return tuple(
        {"name": name, "protocol": "TCP", "port": port, "targetPort": name if name in known else port}
        for name, port in served.items()
    )


def _container_ports(container: Json) -> dict[str, int]:
    return {str(port.get("name")): int(port["containerPort"]) for port in container.get("ports") or ()}


def _template(draft: PodDraft, pod_labels: dict[str, str], annotations: dict[str, str]) -> Json:
    metadata: Json = {"labels": pod_labels}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": draft.finished()}


def _texts(value: Json | None) -> dict[str, str]:
    return {str(key): str(text) for key, text in (value or {}).items()}
