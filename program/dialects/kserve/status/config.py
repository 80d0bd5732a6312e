"""The status of an LLMInferenceServiceConfig: whether it is valid, and which services use it. Pure.

`automation.status.kserve_configs` writes it. Errors that depend on a service are in that service's status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from kubeapi.json_types import Json
from program.desired.errors import DesiredError
from program.desired.keys import ServiceKey
from program.dialects.kserve.configuration.merge import merged
from program.dialects.kserve.conversion import to_hub
from program.dialects.kserve.schema.validation import check_config
from program.dialects.kserve.settings import Settings
from program.dialects.kserve.status.config_use import is_held_by_peer
from program.dialects.kserve.templating.data import spec_data, template_data
from program.dialects.kserve.templating.functions import functions
from program.dialects.kserve.templating.render import render
from program.dialects.status.conditions import Type
from program.dialects.status.service_conditions import ConditionSet, same_status

FIELDS = ("conditions", "observedGeneration", "referencedBy")
"""The fields that Herdsman writes; another client owns the rest of the status."""

IN_USE = "ConfigInUse"
_TYPES = ("Ready", IN_USE)
_MOST_NAMED = 10
"""Maximum number of services in a message; `referencedBy` has all."""

_CONTAINERS: Json = {"containers": [{"name": "main", "image": "sample"}]}
_WORKLOAD: Json = {
    "replicas": 1,
    "parallelism": {"tensor": 1, "pipeline": 1, "data": 1, "dataLocal": 1, "dataRPCPort": 5555, "expert": True},
    "template": _CONTAINERS,
    "worker": _CONTAINERS,
    "kvCacheOffloading": {"cpu": "1Gi", "evictionPolicy": "lru"},
    "rolloutStrategy": {"maxUnavailable": 1, "maxSurge": 1},
}
_SAMPLE: Json = {
    **_WORKLOAD,
    "model": {
        "uri": "hf://sample/sample",
        "name": "sample",
        "lora": {"adapters": [{"uri": "hf://sample/adapter", "name": "adapter"}], "maxRank": 8, "maxAdapters": 1},
    },
    "prefill": _WORKLOAD,
    "router": {"route": {"http": {}}, "gateway": {}, "scheduler": {"replicas": 1, "pool": {}}},
    "tracing": {"exporterEndpoint": "http://sample", "sampler": "sample", "samplerArg": "1", "exporter": "otlp"},
}
"""A service that sets all fields that templates use. It serves only to check configs; no real service sets them all."""


class _AnyWord(dict[str, str]):
    """Labels or annotations that contain every key, because a config may use any key of its services."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return "sample"


def config_problem(cr: Json) -> DesiredError | None:
    """Return why no service can use a config; None if one can."""
    try:
        check_config(cr)
        spec: Json = to_hub(cr).get("spec") or {}
        over = merged(_SAMPLE, spec)
        words = _AnyWord(sample="sample")
        metadata = {**cr["metadata"], "name": "sample", "labels": words, "annotations": words}
        render(spec, template_data(metadata, over, Settings()), functions(spec_data(over)), field="spec")
    except DesiredError as error:
        return error
    return None


def config_status(cr: Json, users: Iterable[ServiceKey], problem: DesiredError | None, *, now: datetime) -> Json:
    """Return the complete status of `cr`, or the dict `cr["status"]` itself if nothing has changed.

    `users` are the services that use it, `problem` is the result of `config_problem`.
    """
    previous: Json = cr.get("status") or {}
    by_name = sorted(users, key=lambda key: (key.namespace, key.name))
    conditions = ConditionSet(cr, _TYPES, now=now)
    if problem is None:
        reason, message = "ConfigValid", "Services can use it"
    else:
        reason, message = problem.reason, str(problem)
    conditions.set(Type.READY, "True" if problem is None else "False", reason, message)
    conditions.set(Type.RECONCILING, "False", reason, message)
    conditions.set(Type.STALLED, "False" if problem is None else "True", reason, message)
    if not by_name:
        conditions.set(IN_USE, "False", "NotInUse", "No service uses it")
    elif is_held_by_peer(cr) and "deletionTimestamp" in cr["metadata"]:
        message = f"The API server deletes it when no service uses it; now used by {_named(by_name)}"
        conditions.set(IN_USE, "True", "DeletionBlocked", message)
    else:
        conditions.set(IN_USE, "True", "InUse", f"Used by {_named(by_name)}")
    status: Json = {
        "observedGeneration": int(cr["metadata"].get("generation") or 0),
        "conditions": [_as_the_peer_writes(condition) for condition in conditions.listed()],
    }
    if by_name:
        status["referencedBy"] = [{"name": key.name, "namespace": key.namespace} for key in by_name]
    return previous if same_status(status, previous, FIELDS, _TYPES) else status


def _named(keys: Sequence[ServiceKey]) -> str:
    named = ", ".join(f"{key.namespace}/{key.name}" for key in keys[:_MOST_NAMED])
    return named if len(keys) <= _MOST_NAMED else f"{named} and {len(keys) - _MOST_NAMED} more"


def _as_the_peer_writes(condition: Json) -> Json:
    """Remove the generation, which KServe's CRDs would refuse, and set the severity of one condition."""
    written = {key: value for key, value in condition.items() if key not in ("observedGeneration", "severity")}
    return {**written, "severity": "Info"} if condition["type"] == IN_USE else written
