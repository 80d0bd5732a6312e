"""All dialects, by name and by kind. The code of a dialect is imported when it is asked for: most clusters have one."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import cast

from kubeapi import kinds
from kubeapi.kinds import Kind
from program.dialects.dialect import Dialect

LLMKUBE = "llmkube"


@dataclass(frozen=True)
class DialectInfo:
    """What is known of a dialect without its code."""

    name: str
    """First part of a `ServiceKey`."""
    kind: Kind
    """The custom resource in its storage version. Its CRD says whether the cluster has the dialect."""
    module: str
    """The module whose `DIALECT` is the dialect."""
    refers_to: tuple[Kind, ...]
    """The kinds that its parser and its status look up."""
    status_mark: str = "Reconciling"
    """A condition that Herdsman writes in every status, and that the upstream controller never writes."""
    shared_conditions: frozenset[str] = frozenset()
    """Conditions that the upstream controller writes as well as Herdsman."""
    yields: bool = True
    """Leave a service to the upstream controller that has, or had, it in its hands, until somebody says otherwise."""


DIALECTS: dict[str, DialectInfo] = {
    each.name: each
    for each in (
        DialectInfo(
            LLMKUBE,
            kinds.INFERENCE_SERVICES,
            "program.dialects.llmkube.dialect",
            refers_to=(kinds.MODELS,),
            status_mark="Ready",
            yields=False,
        ),
        DialectInfo(
            "kserve",
            kinds.LLM_SERVICES,
            "program.dialects.kserve.dialect",
            refers_to=(
                *(kinds.LLM_CONFIGS, kinds.LLM_SERVICES, kinds.CONFIG_MAPS, kinds.SERVICE_ACCOUNTS, kinds.SECRETS),
                *(kinds.GATEWAYS, kinds.HTTP_ROUTES, kinds.INFERENCE_POOLS, kinds.SERVICES),
                *(kinds.AUTOSCALERS, kinds.SCALED_OBJECTS),
            ),
            shared_conditions=frozenset({"Ready"}),
        ),
        DialectInfo(
            "llmaz",
            kinds.PLAYGROUNDS,
            "program.dialects.llmaz.playgrounds",
            refers_to=(kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.CONFIG_MAPS, kinds.LLMAZ_SERVICES),
        ),
        DialectInfo(
            "llmaz-service",
            kinds.LLMAZ_SERVICES,
            "program.dialects.llmaz.services",
            refers_to=(kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.CONFIG_MAPS, kinds.PLAYGROUNDS),
        ),
    )
}
"""LLMKube's comes first, which Herdsman's own CRDs are of."""

DIALECT_KINDS: dict[str, Kind] = {name: each.kind for name, each in DIALECTS.items() if name != LLMKUBE}
"""The custom resources of the dialects whose CRDs Herdsman does not install."""

REFERS_TO: dict[str, tuple[Kind, ...]] = {name: each.refers_to for name, each in DIALECTS.items()}
"""The kinds that a dialect looks up."""


def dialect_named(name: str) -> Dialect:
    """Return a dialect. Raises KeyError for a name that is none of `DIALECTS`."""
    module = importlib.import_module(DIALECTS[name].module)
    return cast(Dialect, module.DIALECT)


def dialect_of(api_version: str, kind: str) -> str:
    """Name the dialect of a custom resource in any version; empty for none of these."""
    group = api_version.rpartition("/")[0]
    return next((name for name, of in DIALECT_KINDS.items() if of.kind == kind and of.group == group), "")
