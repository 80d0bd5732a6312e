"""The registry of dialects: each kind of custom resource that is a service, with facts that need none of its code.

`dialect_named` imports the code of a dialect when a service needs it, since most clusters use only one dialect.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import LABEL_LLMAZ_SERVICE, LABEL_PLAYGROUND, ServiceKey

if TYPE_CHECKING:
    from program.dialects.dialect import Dialect


class ServiceMark(NamedTuple):
    """The labels of the objects and pods of one dialect's services."""

    selector: str
    """Label selector that matches all of them."""
    label: str
    """The label whose value is the service's name."""

    def service_of(self, labels: Mapping[str, str]) -> str:
        """Return the service that an object with these labels belongs to; empty for another dialect's object."""
        name, _, value = self.selector.partition("=")
        return labels.get(self.label, "") if name in labels and (not value or labels[name] == value) else ""


LLMKUBE = "llmkube"
ENGINE_CONTAINERS = ("main", "model-runner")
"""Names of the containers in which KServe and llmaz run the engine. Other containers can precede them."""


@dataclass(frozen=True)
class DialectInfo:
    """The facts about a dialect that are known without importing its code."""

    name: str
    """First part of a `ServiceKey`."""
    kind: Kind
    """The custom resource in its storage version. The cluster has the dialect if it has this CRD."""
    code: str
    """Import path of its code, as `<module>:<attribute>`."""
    mark: ServiceMark
    """The labels by which the objects of its services are found."""
    singular: str
    """The kind before a name in commands: `playground/chat`."""
    refers_to: tuple[Kind, ...]
    """The kinds that its parser and its status look up."""
    creates: tuple[Kind, ...]
    """The kinds of objects created for its services in their namespace, except HostProcesses."""
    may_lack: tuple[Kind, ...] = ()
    """Those of `refers_to` that the cluster may not serve, although `is_required`."""
    short_name: str = ""
    """kubectl's short name of the kind."""
    display_name: str = ""
    """The kind in messages, if the bare kind could mean another one."""
    status_mark: str = "Reconciling"
    """A condition that Herdsman writes in every status, and that the upstream controller never writes."""
    shared_conditions: frozenset[str] = frozenset()
    """Conditions that both the upstream controller and Herdsman write."""
    is_required: bool = False
    """The loop starts only if its CRDs are installed. The CRDs of other dialects may be added and removed while it
    runs.
    """
    yields: bool = True
    """Leave a service to the upstream controller that manages or managed it, until an annotation assigns it to
    Herdsman.
    """


_PODS = (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.AUTOSCALERS)
_LLMAZ = (kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.CONFIG_MAPS)

DIALECTS: dict[str, DialectInfo] = {
    each.name: each
    for each in (
        DialectInfo(
            LLMKUBE,
            kinds.INFERENCE_SERVICES,
            "program.dialects.llmkube.dialect:DIALECT",
            # LLMKube's own labels, so that objects of its controller are found too; the same for KServe.
            ServiceMark("inference.llmkube.dev/service", "inference.llmkube.dev/service"),
            singular="inferenceservice",
            short_name="isvc",
            refers_to=(kinds.MODELS, kinds.LORA_ADAPTERS),
            may_lack=(kinds.LORA_ADAPTERS,),
            creates=(
                *(*_PODS, kinds.DISRUPTION_BUDGETS, kinds.NETWORK_POLICIES, kinds.INGRESSES),
                *(kinds.HTTP_ROUTES, kinds.SCALED_OBJECTS, kinds.POD_MONITORS, kinds.SERVICE_LEVEL_OBJECTIVES),
            ),
            status_mark="Ready",
            is_required=True,
            yields=False,
        ),
        DialectInfo(
            "kserve",
            kinds.LLM_SERVICES,
            "program.dialects.kserve.dialect:DIALECT",
            ServiceMark("app.kubernetes.io/part-of=llminferenceservice", "app.kubernetes.io/name"),
            singular="llminferenceservice",
            short_name="llmisvc",
            refers_to=(
                *(kinds.LLM_CONFIGS, kinds.LLM_SERVICES, kinds.CONFIG_MAPS, kinds.SERVICE_ACCOUNTS, kinds.SECRETS),
                *(kinds.GATEWAYS, kinds.HTTP_ROUTES, kinds.INFERENCE_POOLS, kinds.SERVICES),
                *(kinds.AUTOSCALERS, kinds.SCALED_OBJECTS, kinds.LORA_ADAPTERS),
            ),
            creates=(
                *(*_PODS, kinds.LEADER_WORKER_SETS, kinds.SERVICE_ACCOUNTS, kinds.ROLES, kinds.ROLE_BINDINGS),
                *(kinds.HTTP_ROUTES, kinds.INFERENCE_POOLS, kinds.SCALED_OBJECTS, kinds.CLAIM_TEMPLATES),
            ),
            shared_conditions=frozenset({"Ready"}),
        ),
        DialectInfo(
            "llmaz",
            kinds.PLAYGROUNDS,
            "program.dialects.llmaz.dialect:PLAYGROUNDS",
            ServiceMark(LABEL_PLAYGROUND, LABEL_PLAYGROUND),
            singular="playground",
            short_name="pl",
            refers_to=(*_LLMAZ, kinds.LLMAZ_SERVICES, kinds.LORA_ADAPTERS),
            creates=(*_PODS, kinds.LEADER_WORKER_SETS),
        ),
        DialectInfo(
            "llmaz-service",
            kinds.LLMAZ_SERVICES,
            "program.dialects.llmaz.dialect:SERVICES",
            ServiceMark(LABEL_LLMAZ_SERVICE, LABEL_LLMAZ_SERVICE),
            singular="llmaz-service",  # `service` means Kubernetes' own kind
            display_name="llmaz Service",
            refers_to=(*_LLMAZ, kinds.PLAYGROUNDS, kinds.LORA_ADAPTERS),
            creates=(*_PODS, kinds.LEADER_WORKER_SETS),
        ),
    )
}
"""LLMKube is first, because Herdsman's CRDs belong to its API group."""

INPUT_KINDS = (kinds.MODELS, kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.LLM_CONFIGS)
"""Kinds of custom resources that services refer to, and that get no objects themselves."""

REFERRERS: dict[str, Kind] = {
    "modelrouter": kinds.MODEL_ROUTERS,
    "modelpool": kinds.MODEL_POOLS,
    "loraadapter": kinds.LORA_ADAPTERS,
}
"""Kinds of custom resources that refer to InferenceServices, and that get no objects themselves, by the word before a
name in commands."""
REFERRER_KINDS = tuple(REFERRERS.values())
_REFERRER_SHORT_NAMES = {"mr": "modelrouter", "mpool": "modelpool", "lora": "loraadapter"}

KINDS: dict[str, Kind] = {name: each.kind for name, each in DIALECTS.items()}
"""The custom resource of each dialect."""


def dialect_named(name: str) -> Dialect:
    """Import and return a dialect. Raises KeyError for a name that is not in `DIALECTS`."""
    module, _, attribute = DIALECTS[name].code.partition(":")
    return cast("Dialect", getattr(importlib.import_module(module), attribute))


def dialect_of(obj: Json) -> str:
    """Return the dialect of a custom resource, or of an owner reference, in any version; empty for any other object."""
    kind, group = obj.get("kind"), str(obj.get("apiVersion", "")).rpartition("/")[0]
    return next((name for name, own in KINDS.items() if own.kind == kind and own.group == group), "")


def referrer_of(obj: Json) -> str:
    """Return the word in `REFERRERS` of a custom resource; empty for any other object."""
    kind, group = obj.get("kind"), str(obj.get("apiVersion", "")).rpartition("/")[0]
    return next((word for word, own in REFERRERS.items() if own.kind == kind and own.group == group), "")


def kind_of(cr: Json) -> Kind:
    """Return the kind of the custom resource of a service or of `REFERRERS`. Raises KeyError for any other object."""
    return REFERRERS[word] if (word := referrer_of(cr)) else KINDS[dialect_of(cr)]


def key_of(cr: Json) -> ServiceKey:
    """Return the key of the service that a custom resource describes.

    Resources of `REFERRERS` have keys too, with their word as the dialect. Only their history uses them.
    """
    metadata = cr["metadata"]
    return ServiceKey(
        dialect_of(cr) or referrer_of(cr), str(metadata.get("namespace") or "default"), str(metadata["name"])
    )


def is_part_of_another(cr: Json) -> bool:
    """Return whether a service was created for another one: a Service of llmaz that a Playground controls."""
    references = cr["metadata"].get("ownerReferences") or ()
    return any(each.get("controller") and each.get("kind") == kinds.PLAYGROUNDS.kind for each in references)


# --- how people write kinds and names ---------------------------------------------------------------------------------


def dialect_by_word(word: str) -> str | None:
    """Return the dialect that a word means: its name, or kubectl's names of its kind; None for any other word.

    `services` are Kubernetes' own, so those of llmaz need their group or the dialect's name.
    """
    word = word.lower()
    for name, each in DIALECTS.items():
        words = {each.kind.kind.lower(), each.kind.plural}
        accepted = {name, each.singular, each.short_name, *(f"{one}.{each.kind.group}" for one in words)}
        if each.singular in words:
            accepted |= words
        if word and word in accepted:
            return name
    return None


def split_referrer(name: str) -> tuple[str, str] | None:
    """Split `KIND/NAME` into a word of `REFERRERS` and the name; None for the name of a service.

    kubectl's names of the kinds work too.
    """
    given, slash, rest = name.partition("/")
    given = given.lower()
    for word, kind in REFERRERS.items():
        names = {word, kind.plural, f"{word}.{kind.group}", f"{kind.plural}.{kind.group}"}
        if slash and rest and (given in names or _REFERRER_SHORT_NAMES.get(given) == word):
            return word, rest
    return None


def split_name(name: str) -> tuple[str | None, str]:
    """Split `KIND/NAME` into dialect and name; the dialect is None if there is only a name.

    Raises ValueError for a word that is not a kind of service.
    """
    word, slash, rest = name.partition("/")
    if not slash:
        return None, name
    dialect = dialect_by_word(word)
    if dialect is None or not rest:
        known = ", ".join(qualified(each, "NAME") for each in DIALECTS)
        raise ValueError(f"`{name}` is not a kind of service; write one of {known}")
    return dialect, rest


def qualified(dialect: str, name: str) -> str:
    """Return `KIND/NAME`, which names a service of one dialect only."""
    return f"{DIALECTS[dialect].singular}/{name}"


def kind_text(dialect: str) -> str:
    """Return the kind of a dialect's services, or of a word of `REFERRERS`, for messages."""
    if dialect in REFERRERS:
        return REFERRERS[dialect].kind
    return DIALECTS[dialect].display_name or DIALECTS[dialect].kind.kind
