"""The dialects beside LLMKube's, by name and by kind. Imported only when asked for, since most clusters have none."""

from __future__ import annotations

import importlib
from typing import cast

from kubeapi import kinds
from kubeapi.kinds import Kind
from program.dialects.dialect import Dialect

_BY_NAME: dict[str, tuple[Kind, str]] = {
    "kserve": (kinds.LLM_SERVICES, "program.dialects.kserve.dialect"),
    "llmaz": (kinds.PLAYGROUNDS, "program.dialects.llmaz.playgrounds"),
    "llmaz-service": (kinds.LLMAZ_SERVICES, "program.dialects.llmaz.services"),
}

DIALECT_KINDS: dict[str, Kind] = {name: kind for name, (kind, _) in _BY_NAME.items()}
"""The custom resource of each dialect, which says whether the dialect is there."""


REFERS_TO: dict[str, tuple[Kind, ...]] = {
    "kserve": (
        *(kinds.LLM_CONFIGS, kinds.LLM_SERVICES, kinds.CONFIG_MAPS, kinds.SERVICE_ACCOUNTS, kinds.SECRETS),
        *(kinds.GATEWAYS, kinds.HTTP_ROUTES, kinds.INFERENCE_POOLS, kinds.SERVICES),
        *(kinds.AUTOSCALERS, kinds.SCALED_OBJECTS),
    ),
    "llmaz": (kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.CONFIG_MAPS, kinds.LLMAZ_SERVICES),
    "llmaz-service": (kinds.OPEN_MODELS, kinds.BACKEND_RUNTIMES, kinds.CONFIG_MAPS, kinds.PLAYGROUNDS),
}
"""By dialect the kinds that it looks up; here and not beside its code, so that asking does not import it."""


def dialect_named(name: str) -> Dialect:
    """Give a dialect. Raises KeyError for a name that is none of `DIALECT_KINDS`."""
    module = importlib.import_module(_BY_NAME[name][1])
    return cast(Dialect, module.DIALECT)


def dialect_of(api_version: str, kind: str) -> str:
    """Name the dialect of a custom resource in any version; empty for none of these."""
    group = api_version.rpartition("/")[0]
    return next((name for name, of in DIALECT_KINDS.items() if of.kind == kind and of.group == group), "")
