"""Reads Herdsman's annotations on a service, for settings without a field in the dialect's schema. Pure.

The dialects' parsers call this. An invalid annotation raises SpecInvalid at `metadata.annotations[<name>]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from program.desired import keys
from program.desired.base import FrozenModel
from program.desired.engines import SecretKey
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.service import (
    DesiredService,
    DriftAction,
    DriftPolicy,
    Exposure,
    HostPlacement,
    NetworkAccess,
    Sleep,
)
from program.dialects.annotation_values import (
    duration_s,
    flag,
    host_names,
    invalid,
    is_name,
    is_secret_key,
    labels_of,
    one_of,
    words_of,
)
from program.runtimes import runtime_for
from program.runtimes.base import served_name_option

ANNOTATION_IDLE_ENDPOINT = "inference.llmkube.dev/idle-endpoint"
"""LLMKube's annotation: on a generic service, the HTTP path that answers 2xx while it works on no request."""
API_KEY = "api-key"
"""Key of the Secret with the API key, if the annotation names none."""
OWN_NAMESPACE = "namespace"
"""Value of the network policy's annotation that means the service's namespace."""
EXPOSE_DETAILS = (
    keys.ANNOTATION_EXPOSE_HOST,
    keys.ANNOTATION_EXPOSE_GATEWAY,
    keys.ANNOTATION_EXPOSE_CLASS,
    keys.ANNOTATION_EXPOSE_TLS_SECRET,
)

POD_ONLY_ANNOTATIONS = (
    keys.ANNOTATION_EXPOSE,
    keys.ANNOTATION_API_KEY_SECRET,
    keys.ANNOTATION_ENGINE_KEY,
    keys.ANNOTATION_ENGINE_KEY_GENERATION,
    keys.ANNOTATION_NETWORK_POLICY,
    keys.ANNOTATION_ONLY_GATEWAY,
    keys.ANNOTATION_MAX_UNAVAILABLE,
    keys.ANNOTATION_ROLLBACK,
    keys.ANNOTATION_READINESS_GATE,
    keys.ANNOTATION_SCALE_QUERY,
)
"""Annotations without an effect on a process on a host."""

# No comma, because llama-server splits a list of names at commas.
_MODEL_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/:@]{0,252}", re.ASCII)
_SHARE = re.compile(r"(?P<number>[0-9]{1,4})(?P<percent>%)?", re.ASCII)
_FIELD_PATH = re.compile(
    r"(spec|metadata|data)((\.[A-Za-z_$][-\w$]*)|(\[([0-9]{1,4}|\*|[a-z0-9][-a-z0-9]{0,62})\])|(\[\"[^\"\\]{1,320}\"\])|(\.\*))+",
    re.ASCII,
)
MADE_KINDS = (
    "Deployment",
    "Service",
    "HorizontalPodAutoscaler",
    "ScaledObject",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "HTTPRoute",
    "Ingress",
    "PodMonitor",
    "ServiceLevelObjective",
    "HostProcess",
    "LeaderWorkerSet",
    "InferencePool",
    "ResourceClaimTemplate",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRoleBinding",
)
"""Kinds of objects that belong to one service only."""


class Annotated(FrozenModel):
    """The annotations of a service, parsed and checked."""

    expose: Exposure | None = None
    api_key: SecretKey | None = None
    engine_key: int | None = None
    """The loop makes the API key: its generation, counted from 1."""
    network: NetworkAccess | None = None
    max_unavailable: str = ""
    rollback: bool = False
    completion_check: bool = True
    readiness_gate: bool = False
    scale_query: str = ""
    idle_path: str = ""
    sleep: Sleep | None = None
    wake_timeout_s: float | None = None
    max_held_requests: int | None = None
    scale_by_requests: bool = False
    """The gateways' requests set the number of replicas; `request_scaling` reads how."""
    served_name: str = ""
    drain_s: float | None = None
    """The same as `DesiredService.drain_s`."""
    drift: DriftPolicy = DriftPolicy()
    hosting: HostPlacement = HostPlacement()
    """The wishes of a service that runs on hosts. `host` is only set if the user pinned the service."""


def read_annotations(annotations: Mapping[str, str]) -> Annotated:
    """Read all annotations. Raises SpecInvalid at the first invalid one."""
    # The loop applies the mode. Here, an unknown word is an error, so that it is not taken for Apply.
    one_of(annotations, keys.ANNOTATION_MODE, ("Apply", "Preview", "Paused"))
    check = flag(annotations, keys.ANNOTATION_COMPLETION_CHECK, default=True)
    gate = flag(annotations, keys.ANNOTATION_READINESS_GATE, default=False)
    if gate and not check:
        raise invalid(
            keys.ANNOTATION_READINESS_GATE,
            f"needs the completion check, which annotation {keys.ANNOTATION_COMPLETION_CHECK} turns off, so no pod "
            f"would ever receive a request; remove one of the two annotations",
        )
    return Annotated(
        expose=_exposure(annotations),
        api_key=_api_key(annotations),
        engine_key=_engine_key(annotations),
        network=_network(annotations),
        max_unavailable=_max_unavailable(annotations),
        rollback=flag(annotations, keys.ANNOTATION_ROLLBACK, default=False),
        completion_check=check,
        readiness_gate=gate,
        scale_query=annotations.get(keys.ANNOTATION_SCALE_QUERY, "").strip(),
        idle_path=_idle_path(annotations),
        sleep=_sleep(annotations),
        wake_timeout_s=duration_s(annotations, keys.ANNOTATION_WAKE_TIMEOUT),
        max_held_requests=_max_held(annotations),
        scale_by_requests=one_of(annotations, keys.ANNOTATION_SCALE_BY, ("requests",)) is not None,
        served_name=_served_name(annotations),
        drain_s=_drain_s(annotations),
        drift=_drift(annotations),
        hosting=_hosting(annotations),
    )


def lost_name(desired: DesiredService) -> Iterator[Problem]:
    """Yield the annotation with the model's name for clients if it has no effect."""
    runtime = runtime_for(desired.engine)
    if not desired.served_name:
        return
    if not runtime.name_flags:
        why = f"runtime {runtime.name} has no option for the model's name; it chooses the name itself"
    elif not served_name_option(desired, runtime.name_flags):
        why = "the arguments of the service already set the model's name"
    else:
        return
    field = f"metadata.annotations[{keys.ANNOTATION_SERVED_NAME}]"
    yield unsupported_field(field, why)


def _exposure(annotations: Mapping[str, str]) -> Exposure | None:
    by = annotations.get(keys.ANNOTATION_EXPOSE, "")
    if by == "":
        return None
    if by not in ("gateway", "ingress"):
        raise invalid(keys.ANNOTATION_EXPOSE, f"`{by[:64]}` is neither `gateway` nor `ingress`")
    host = annotations.get(keys.ANNOTATION_EXPOSE_HOST, "")
    if host and not is_name(host.removeprefix("*.")):
        raise invalid(keys.ANNOTATION_EXPOSE_HOST, f"`{host[:64]}` is not a DNS name in lower case")
    if by == "ingress":
        ingress_class = annotations.get(keys.ANNOTATION_EXPOSE_CLASS, "")
        tls_secret = annotations.get(keys.ANNOTATION_EXPOSE_TLS_SECRET, "")
        if ingress_class and not is_name(ingress_class):
            raise invalid(keys.ANNOTATION_EXPOSE_CLASS, f"`{ingress_class[:64]}` is not the name of an IngressClass")
        if tls_secret and not is_name(tls_secret):
            raise invalid(keys.ANNOTATION_EXPOSE_TLS_SECRET, f"`{tls_secret[:64]}` is not the name of a Secret")
        return Exposure(by="ingress", host=host, ingress_class=ingress_class, tls_secret=tls_secret)
    written = annotations.get(keys.ANNOTATION_EXPOSE_GATEWAY, "")
    if not written:
        raise invalid(keys.ANNOTATION_EXPOSE_GATEWAY, "is missing; name the Gateway, as `name` or `namespace/name`")
    namespace, slash, name = written.rpartition("/")
    if not is_name(name) or (slash and not keys.is_dns_label(namespace)):
        raise invalid(keys.ANNOTATION_EXPOSE_GATEWAY, f"`{written[:64]}` is neither `name` nor `namespace/name`")
    return Exposure(by="gateway", host=host, gateway=name, gateway_namespace=namespace)


def _api_key(annotations: Mapping[str, str]) -> SecretKey | None:
    written = annotations.get(keys.ANNOTATION_API_KEY_SECRET, "")
    if written == "":
        return None
    name, slash, key = written.partition("/")
    key = key if slash else API_KEY
    if not is_name(name) or not is_secret_key(key):
        # The value is not shown: a user may have written the key itself here.
        raise invalid(keys.ANNOTATION_API_KEY_SECRET, "is neither the name of a Secret nor `secret/key`")
    return SecretKey(name=name, key=key)


def _engine_key(annotations: Mapping[str, str]) -> int | None:
    wanted = flag(annotations, keys.ANNOTATION_ENGINE_KEY, default=False)
    if wanted and annotations.get(keys.ANNOTATION_API_KEY_SECRET):
        other = keys.ANNOTATION_API_KEY_SECRET
        raise invalid(
            keys.ANNOTATION_ENGINE_KEY,
            f"has Herdsman make a key, and annotation {other} names yours; remove one of them",
        )
    generation = keys.engine_key_generation(annotations)
    if generation is None:
        raise invalid(keys.ANNOTATION_ENGINE_KEY_GENERATION, "is not a whole number from 1 to 999999")
    try:
        keys.engine_key_max_age_s(annotations)
    except ValueError as error:
        raise invalid(keys.ANNOTATION_ENGINE_KEY_MAX_AGE, str(error)) from None
    return generation if wanted else None


def _network(annotations: Mapping[str, str]) -> NetworkAccess | None:
    if gateway := _gateway_namespace(annotations):
        return NetworkAccess(gateway=gateway)
    written = annotations.get(keys.ANNOTATION_NETWORK_POLICY, "").strip()
    if written == "":
        return None
    if written == OWN_NAMESPACE:
        return NetworkAccess()
    namespaces = tuple(dict.fromkeys(part.strip() for part in written.split(",")))
    for namespace in namespaces:
        if not keys.is_dns_label(namespace):
            raise invalid(
                keys.ANNOTATION_NETWORK_POLICY,
                f"`{namespace[:64]}` is not the name of a namespace; write `{OWN_NAMESPACE}` for the service's own, or "
                "names with commas between them",
            )
    return NetworkAccess(namespaces=namespaces)


def _gateway_namespace(annotations: Mapping[str, str]) -> str:
    """Return the namespace of the gateway that alone may connect; empty when others may."""
    written = annotations.get(keys.ANNOTATION_ONLY_GATEWAY, "").strip()
    if written in ("", "false"):
        return ""
    for other in (keys.ANNOTATION_NETWORK_POLICY, keys.ANNOTATION_EXPOSE):
        if annotations.get(other, "").strip():
            raise invalid(
                keys.ANNOTATION_ONLY_GATEWAY,
                f"admits nobody but Herdsman's gateway, and annotation {other} admits others; remove one of the two",
            )
    if written == "true":
        return keys.SYSTEM_NAMESPACE
    if not keys.is_dns_label(written):
        raise invalid(
            keys.ANNOTATION_ONLY_GATEWAY,
            f"`{written[:64]}` is neither `true` nor the name of the namespace in which the gateway runs",
        )
    return written


def _max_unavailable(annotations: Mapping[str, str]) -> str:
    written = annotations.get(keys.ANNOTATION_MAX_UNAVAILABLE, "").strip()
    if written == "":
        return ""
    match = _SHARE.fullmatch(written)
    if match is None or (match["percent"] and int(match["number"]) > 100):
        raise invalid(
            keys.ANNOTATION_MAX_UNAVAILABLE, f"`{written[:64]}` is neither a number of pods (`1`) nor a share (`25%`)"
        )
    return f"{int(match['number'])}{match['percent'] or ''}"


def _idle_path(annotations: Mapping[str, str]) -> str:
    path = annotations.get(ANNOTATION_IDLE_ENDPOINT, "")
    if path and (not path.startswith("/") or any(c.isspace() for c in path) or len(path) > 256):
        raise invalid(ANNOTATION_IDLE_ENDPOINT, f"`{path[:64]}` is not a path such as `/idle`")
    return path


def _hosting(annotations: Mapping[str, str]) -> HostPlacement:
    group = annotations.get(keys.ANNOTATION_MODEL_GROUP, "")
    if group and not is_name(group):
        raise invalid(keys.ANNOTATION_MODEL_GROUP, f"`{group[:64]}` is not a name in lower case")
    residency = one_of(annotations, keys.ANNOTATION_RESIDENCY, ("pinned", "preferred", "onDemand"))
    dwell = duration_s(annotations, keys.ANNOTATION_MIN_DWELL)
    if (residency is None) != (not group):
        missing = keys.ANNOTATION_RESIDENCY if residency is None else keys.ANNOTATION_MODEL_GROUP
        present = keys.ANNOTATION_MODEL_GROUP if residency is None else keys.ANNOTATION_RESIDENCY
        raise invalid(present, f"has no effect without annotation {missing}; set both, or neither")
    pinned = annotations.get(keys.ANNOTATION_HOST) or None
    return HostPlacement(
        host=pinned,
        pinned=pinned is not None,
        selector=labels_of(annotations, keys.ANNOTATION_HOST_SELECTOR),
        preferred=host_names(annotations, keys.ANNOTATION_PREFERRED_HOSTS),
        excluded=host_names(annotations, keys.ANNOTATION_EXCLUDED_HOSTS),
        strategy=one_of(annotations, keys.ANNOTATION_HOST_STRATEGY, ("spread", "pack")) or "spread",
        may_move=flag(annotations, keys.ANNOTATION_HOST_MOVES, default=True),
        memory_check=one_of(annotations, keys.ANNOTATION_MEMORY_CHECK, ("enforce", "warn", "off")),
        residency=residency,
        group=group,
        min_dwell_s=dwell,
    )


def _sleep(annotations: Mapping[str, str]) -> Sleep | None:
    after_s = duration_s(annotations, keys.ANNOTATION_IDLE_TIMEOUT)
    wake_s = duration_s(annotations, keys.ANNOTATION_WAKE_TIMEOUT)
    held = _max_held(annotations)
    if after_s is None:
        if annotations.get(keys.ANNOTATION_SCALE_BY):
            return None  # with `minReplicas: 0` the service sleeps too, and the gateway reads how requests wait
        for name in (keys.ANNOTATION_WAKE_TIMEOUT, keys.ANNOTATION_MAX_HELD_REQUESTS):
            if annotations.get(name):
                raise invalid(
                    name,
                    f"has no effect without annotation {keys.ANNOTATION_IDLE_TIMEOUT}; add that one, or remove this "
                    f"one",
                )
        return None
    return Sleep(idle_timeout_s=after_s, wake_timeout_s=wake_s, max_held_requests=held)


def _max_held(annotations: Mapping[str, str]) -> int | None:
    held = annotations.get(keys.ANNOTATION_MAX_HELD_REQUESTS, "")
    if held and not (held.isascii() and held.isdigit() and len(held) < 7):
        raise invalid(keys.ANNOTATION_MAX_HELD_REQUESTS, f"`{held[:64]}` is not a number")
    return int(held) if held else None


def _served_name(annotations: Mapping[str, str]) -> str:
    name = annotations.get(keys.ANNOTATION_SERVED_NAME, "")
    if name and not _MODEL_NAME.fullmatch(name):
        raise invalid(
            keys.ANNOTATION_SERVED_NAME,
            f"`{name[:64]}` is not a valid model name; use up to 253 letters, digits and . _ - / : @, and begin with a "
            "letter or digit",
        )
    return name


def _drain_s(annotations: Mapping[str, str]) -> float | None:
    value = annotations.get(keys.ANNOTATION_DRAIN, "")
    if value in ("", "true"):
        return None
    if value == "false":
        return 0.0
    try:
        return duration_s(annotations, keys.ANNOTATION_DRAIN)
    except SpecInvalid as error:
        raise invalid(keys.ANNOTATION_DRAIN, f'{error.why}, or "false" to drop requests') from None


def _drift(annotations: Mapping[str, str]) -> DriftPolicy:
    default: DriftAction = "repair"
    kinds: dict[str, DriftAction] = {}
    for word in words_of(annotations, keys.ANNOTATION_DRIFT):
        kind, equals, action = (part.strip() for part in word.rpartition("="))
        if action not in ("repair", "report") or (equals and kind not in MADE_KINDS):
            raise invalid(
                keys.ANNOTATION_DRIFT,
                f"`{word[:64]}` is neither `repair` nor `report`, alone or for a kind (`Deployment=report`); the "
                f"kinds are {', '.join(MADE_KINDS)}",
            )
        chosen: DriftAction = "report" if action == "report" else "repair"
        if equals:
            kinds[kind] = chosen
        else:
            default = chosen
    ignored: dict[str, tuple[str, ...]] = {}
    for word in words_of(annotations, keys.ANNOTATION_DRIFT_IGNORE):
        kind, _, path = word.partition("/")
        if kind not in MADE_KINDS or _FIELD_PATH.fullmatch(path) is None:
            raise invalid(
                keys.ANNOTATION_DRIFT_IGNORE,
                f"`{word[:64]}` is not the field of a kind; write for example `Service/spec.type`",
            )
        ignored[kind] = (*ignored.get(kind, ()), path)
    return DriftPolicy(default=default, kinds=kinds, ignored=ignored)


_ON_HOSTS = (
    keys.ANNOTATION_PREFERRED_HOSTS,
    keys.ANNOTATION_EXCLUDED_HOSTS,
    keys.ANNOTATION_HOST_STRATEGY,
    keys.ANNOTATION_HOST_MOVES,
    keys.ANNOTATION_MEMORY_CHECK,
    keys.ANNOTATION_RESIDENCY,
    keys.ANNOTATION_MODEL_GROUP,
    keys.ANNOTATION_MIN_DWELL,
    keys.ANNOTATION_MODEL_FILE,
    keys.ANNOTATION_MODEL_FORMAT,
)
_ASLEEP = (keys.ANNOTATION_IDLE_TIMEOUT, keys.ANNOTATION_WAKE_TIMEOUT, keys.ANNOTATION_MAX_HELD_REQUESTS)
NOT_IN_WORKLOADS = tuple(dict.fromkeys((*POD_ONLY_ANNOTATIONS, *EXPOSE_DETAILS)))
"""Annotations that have no effect on pods that users describe, only on LLMKube's, which Herdsman describes."""


def not_in_workloads(annotations: Mapping[str, str]) -> tuple[Problem, ...]:
    """List the annotations without an effect on such a service while it runs in pods."""
    by_requests = bool(annotations.get(keys.ANNOTATION_SCALE_BY))
    return (
        *(
            _problem(
                name,
                f"needs annotation {keys.ANNOTATION_SCALE_BY}: requests on a service that describes its pods itself; "
                "add it, or remove this one",
            )
            for name in _ASLEEP
            if annotations.get(name) and not by_requests
        ),
        *(
            _problem(name, "has no effect on a service that describes its pods itself; remove it")
            for name in NOT_IN_WORKLOADS
            if annotations.get(name, "") not in ("", "false")
        ),
        *(
            _problem(name, f"has an effect on hosts only; add {keys.ANNOTATION_HOST_SELECTOR}, or remove it")
            for name in _ON_HOSTS
            if annotations.get(name)
        ),
        *(
            _problem(name, "has no effect on a service that describes its pods itself; name the model in its arguments")
            for name in (keys.ANNOTATION_SERVED_NAME,)
            if annotations.get(name)
        ),
    )


def _problem(annotation: str, why: str) -> Problem:
    return unsupported_field(f"metadata.annotations[{annotation}]", why)
