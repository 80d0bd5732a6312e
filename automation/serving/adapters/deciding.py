"""Decides what is to be done for a LoRAAdapter: whether its replicas are asked, and when its deletion may end. Pure.

`controller` calls it with what the caches hold and with what the replicas said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from automation.cache.trim import LABEL_COMPONENT
from automation.serving.engine_start import EngineStart, is_foreign, is_healthy, start_of
from automation.workqueue.backoff import backoff_s
from kubeapi.json_types import Json
from program.desired.adapter import Adapter, AdapterOutcome, AdapterReason
from program.desired.facts import Problem
from program.dialects.described_adapters import why_not_downloaded
from program.dialects.llmkube.parse.adapter import (
    ENGINES,
    file_of,
    keeps_prompts_of_adapters,
    why_not_part,
)
from program.dialects.pods.llama_server import POSSIBLE, Refusal
from program.dialects.registry import LLMKUBE, kind_text

FINALIZER = "herdsman.dev/lora-adapter"
PEER_FINALIZER = "loraadapter.inference.llmkube.dev/finalizer"
"""LLMKube's finalizer. After its controller is gone, nothing else removes it."""
VERIFY_S = 60.0
"""How often a replica that has the adapter is asked whether it still has it."""
FAILED_BASE_S, FAILED_CAP_S = 2.0, 60.0
BUSY_S = 0.5
"""When a replica is asked that was busy with another adapter."""
HOPELESS_S = 300.0
"""When a replica is asked again that cannot load the adapter before it is started anew."""
UNLOAD_WITHIN_S = 60.0
"""How long a deletion waits for replicas that do not unload the adapter."""
_FOR_THE_NEXT_START = frozenset({AdapterReason.RUNTIME_LOADING_DISABLED, AdapterReason.NOT_IN_ARGUMENTS})
_SHOWN = 3
_SETS = ("ReplicaSet", "StatefulSet")
_SCHEDULER = "scheduler"
"""A part of the component of KServe's pods that choose replicas."""


def running(pods: Iterable[Json]) -> tuple[EngineStart, ...]:
    """Return the starts of a service's engines that are asked: those of healthy pods, in the order of their names."""
    starts = (start_of(pod) for pod in pods if is_healthy(pod) and not is_foreign(pod))
    return tuple(sorted(start for start in starts if start is not None))


def engine_pods(pods: Iterable[Json]) -> list[Json]:
    """Return the pods of a service of KServe or llmaz whose engine answers requests.

    Schedulers are left out, and pods of Jobs, and the workers of a group: the StatefulSet of a worker has the name of
    the group's leader.
    """
    found = [pod for pod in pods if (pod.get("engine") or {}).get("runtime")]
    names = {pod["metadata"]["name"] for pod in found}
    return [
        pod
        for pod in found
        if pod["engine"]["of"][0] in _SETS
        and pod["engine"]["of"][1] not in names
        and _SCHEDULER not in pod["metadata"]["labels"].get(LABEL_COMPONENT, "")
    ]


def refusal_of(pods: Iterable[Json]) -> Refusal:
    """Return why no pod of a service of KServe or llmaz can be started with downloaded adapters.

    While a rollout replaces pods that cannot by pods that can, it is possible.
    """
    found: list[Refusal] = [pod["engine"].get("takes_no_adapters", POSSIBLE) for pod in pods]
    return found[0] if found and POSSIBLE not in found else POSSIBLE


def hindrance(
    adapter: Adapter,
    *,
    first: Adapter | None,
    service: Json | None,
    engine: str,
    managed: bool,
    on_hosts: bool,
    replicas: int,
    refusal: Refusal = POSSIBLE,
) -> Problem | None:
    """Return why no replica is asked to load an adapter; None if all running replicas are.

    `first` is the adapter that counts for this service and name. `engine` is empty while it is unknown. `managed`: this
    loop manages the service. `refusal` is that of `refusal_of`.
    """
    what = f"{kind_text(adapter.dialect)} `{adapter.service}`"
    if first is not None and first.uid != adapter.uid:
        return _problem(
            AdapterReason.NAME_TAKEN,
            f"LoRAAdapter `{first.resource}` is older and has the name `{adapter.name}` for the same service; delete "
            "one of them, or give this one another name",
        )
    if service is None or "deletionTimestamp" in service["metadata"]:
        return Problem(reason=AdapterReason.SERVICE_NOT_FOUND, message=f"there is no {what}")
    if not managed:
        return _problem(
            AdapterReason.SERVICE_NOT_MANAGED,
            f"this loop does not manage {what}; `herdsman adopt` takes it over",
        )
    if adapter.dialect != LLMKUBE:
        return _of_another_dialect(
            adapter, service, what, engine=engine, on_hosts=on_hosts, replicas=replicas, refusal=refusal
        )
    file = file_of(adapter, on_host=on_hosts)
    if engine not in ENGINES:
        return _problem(
            AdapterReason.RUNTIME_MISMATCH,
            f"runtime {engine} serves no adapters; runtimes vllm, sglang and llamacpp do",
        )
    if file is not None:
        reason, message = why_not_part(engine, service, file, on_host=on_hosts)
        if reason is not None:
            return _problem(reason, f"InferenceService `{adapter.service}`: {message}")
    elif engine == "llamacpp" and keeps_prompts_of_adapters(service):
        return _problem(
            AdapterReason.NOT_IN_ARGUMENTS,
            "llama-server would answer with cached prompts of other adapters; add --cache-ram 0 to spec.extraArgs of "
            f"InferenceService `{adapter.service}`",
        )
    if not replicas:
        return Problem(reason=AdapterReason.NO_REPLICA, message=_no_replica(what, service))
    return None


def _of_another_dialect(
    adapter: Adapter, service: Json, what: str, *, engine: str, on_hosts: bool, replicas: int, refusal: Refusal
) -> Problem | None:
    """Return why no replica of a service of KServe or llmaz is asked."""
    if adapter.name in _own_adapters(service):
        why = f"{what} has an adapter `{adapter.name}` in spec.model.lora; give this one another name"
        return _problem(AdapterReason.NAME_TAKEN, why)
    if on_hosts:
        why = f"{what} runs on hosts, where only InferenceServices get adapters"
        return _problem(AdapterReason.HOSTS_NOT_SUPPORTED, why)
    if not replicas:
        return Problem(reason=AdapterReason.NO_REPLICA, message=_no_replica(what, service))
    if engine not in ENGINES:
        why = f"the pods of {what} run no engine that serves adapters; vLLM, SGLang and llama.cpp do"
        return _problem(AdapterReason.RUNTIME_MISMATCH, why)
    if adapter.file is not None:
        reason, message = why_not_downloaded(engine, adapter.file, refusal)
        if reason is not None:
            return _problem(reason, f"{what}: {message}")
    return None


def _own_adapters(service: Json) -> set[str]:
    """Return the names of the adapters in the spec of an LLMInferenceService."""
    at: Any = service.get("spec")
    for name in ("model", "lora", "adapters"):
        at = at.get(name) if isinstance(at, dict) else None
    return {str(each.get("name")) for each in at if isinstance(each, dict)} if isinstance(at, list) else set()


def again_s(outcome: AdapterOutcome, *, jitter: float) -> float:
    """Return the seconds until a replica is asked again after an outcome."""
    if outcome.state == "loaded":
        return VERIFY_S
    if outcome.state == "absent":
        return math.inf
    if outcome.state == "waiting":
        return BUSY_S
    if outcome.reason in _FOR_THE_NEXT_START:
        return HOPELESS_S
    return backoff_s(outcome.tries, base_s=FAILED_BASE_S, cap_s=FAILED_CAP_S, jitter=jitter)


def following(before: AdapterOutcome | None, outcome: AdapterOutcome) -> AdapterOutcome:
    """Return the outcome to remember after another one.

    A replica that had the adapter and does not answer for a moment still has it: only a restart of its engine, which
    is another start, takes it away. Failures in a row are counted.
    """
    if before is None:
        return outcome
    if outcome.state == "waiting":
        return before
    if before.state == "loaded" and outcome.reason == AdapterReason.REPLICA_UNREACHABLE:
        return before
    if before.state == outcome.state == "failed":
        return outcome.model_copy(update={"tries": before.tries + 1})
    return outcome


class Removal(NamedTuple):
    """Whether an adapter's deletion may end, and the Event about it."""

    done: bool
    type: Literal["Normal", "Warning"] = "Normal"
    reason: str = ""
    message: str = ""


def removal(
    adapter: Adapter | None, outcomes: Mapping[str, AdapterOutcome | None], *, asked: bool, waited_s: float
) -> Removal:
    """Decide on the end of a deletion. `outcomes` has what each running replica said of the removal, by pod.

    `adapter` is None for a spec that was never valid. `asked` is False if this loop may not ask the replicas. The wait
    is bounded, because a finalizer that stays would also block the deletion of the namespace.
    """
    if adapter is None:
        return Removal(True, "Normal", "AdapterRemoved", "The adapter was never loaded")
    name = f"Adapter `{adapter.name}`"
    if asked and not outcomes:
        return Removal(True, "Normal", "AdapterRemoved", f"{name} was removed; no replica had to unload it")
    left = {pod: said for pod, said in outcomes.items() if said is None or said.state != "absent"}
    if asked and not left:
        return Removal(True, "Normal", "AdapterUnloaded", f"{name} was unloaded from all replicas: {len(outcomes)}")
    if waited_s < UNLOAD_WITHIN_S:
        return Removal(False)
    if not asked:
        why = "this loop does not manage the service"
    else:
        named = [f"{pod}: {said.message if said else 'no answer'}" for pod, said in list(left.items())[:_SHOWN]]
        why = "; ".join([*named, *([f"and {len(left) - _SHOWN} more"] if len(left) > _SHOWN else [])])
    message = f"{name} was removed without being unloaded within {UNLOAD_WITHIN_S:g} s: {why}"
    return Removal(True, "Warning", "AdapterNotUnloaded", f"{message}. Replicas keep it until they are restarted")


def _problem(reason: AdapterReason, message: str) -> Problem:
    return Problem(reason=reason, message=message, terminal=True)


def _no_replica(what: str, service: Json) -> str:
    conditions = (service.get("status") or {}).get("conditions") or ()
    ready: Json = next((each for each in conditions if each.get("type") == "Ready"), {})
    why = f"{ready.get('reason')}: {ready.get('message')}" if ready.get("status") == "False" else "it starts"
    return f"no replica of {what} runs ({why}); each loads the adapter when it runs"
