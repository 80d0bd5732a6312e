"""The replicas that have an adapter from their start: processes on hosts, and pods that download it. Pure.

`controller` calls it. A process is never asked: its plan names the adapters in the order in which llama-server numbers
them, and a process that is ready for its plan has loaded them. A pod that downloads an adapter is asked only when it
serves; before, its init container shows the progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.contract import ProcessPhase
from agent.sources.errors import Reason
from automation.serving.engine_start import is_foreign, is_healthy
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.adapter import AdapterFile, AdapterOutcome, AdapterReason, AdapterReplica

_OF_FILES = frozenset(Reason)
_LONGEST_MESSAGE = 300


def processes_of(objects: Mapping[tuple[str, str], Json]) -> list[Json]:
    """Return the HostProcesses among the objects of a service, by their replica."""
    found = [obj for (kind, _), obj in objects.items() if kind == kinds.HOST_PROCESSES.kind]
    return sorted(found, key=lambda each: (each["spec"]["replica"], each["metadata"]["name"]))


def on_hosts(file: AdapterFile, processes: Iterable[Json]) -> tuple[AdapterReplica, ...]:
    """Return the adapter in each process."""
    return tuple(
        AdapterReplica(pod=each["metadata"]["name"], host=each["spec"]["host"], outcome=_of_process(file, each))
        for each in processes
    )


def _of_process(file: AdapterFile, process: Json) -> AdapterOutcome:
    spec, status = process["spec"], process["status"]
    adapters: tuple[str, ...] = spec.get("adapters", ())
    if file.token not in adapters:
        return _waits(AdapterReason.RESTART_PENDING, "the plan of the process does not have the adapter yet")
    observed, generation = status.get("observedGeneration") or 0, process["metadata"].get("generation") or 0
    if int(observed) < int(generation) or status.get("host") not in (None, spec["host"]):
        why = f"host `{spec['host']}` has not read the changed plan yet"
        return _waits(AdapterReason.RESTART_PENDING, why)
    phase, reason = status.get("phase"), str(status.get("reason") or "")
    earlier = status.get("earlier") or {}
    loaded = tuple(earlier.get("adapters") or ())
    if status.get("ready") and file.token in loaded:
        return AdapterOutcome(state="loaded", adapter_id=loaded.index(file.token))
    if phase == ProcessPhase.DOWNLOADING:
        return _waits(AdapterReason.DOWNLOADING, f"the host downloads model and adapters{_progress(status)}")
    if reason in _OF_FILES:
        return _failed(AdapterReason.DOWNLOAD_FAILED, f"{reason}: {status.get('message')}")
    if status.get("ready") and not earlier:
        return AdapterOutcome(state="loaded", adapter_id=adapters.index(file.token))
    if phase in (ProcessPhase.FAILED, ProcessPhase.BACKING_OFF):
        return _failed(AdapterReason.REPLICA_FAILED, f"{reason}: {status.get('message')}")
    return _waits(AdapterReason.LOADING, f"the process is {phase or 'not started'}")


def _progress(status: Json) -> str:
    done, total = status.get("downloadedBytes"), status.get("totalBytes")
    if done is None:
        return ""
    return f": {done} of {total} bytes" if total else f": {done} bytes"


def without(processes: Iterable[Json], name: str) -> dict[str, AdapterOutcome | None]:
    """Return which processes still have an adapter with a name, for its deletion: by process."""
    said: dict[str, AdapterOutcome | None] = {}
    for each in processes:
        planned = any(adapter.rpartition("-")[0] == f"lora-{name}" for adapter in each["spec"].get("adapters", ()))
        gone = AdapterOutcome(state="absent", reason=AdapterReason.UNLOADING)
        said[each["metadata"]["name"]] = _waits(AdapterReason.UNLOADING, "the plan still has it") if planned else gone
    return said


def is_in_a_replica(file: AdapterFile, processes: Iterable[Json], pods: Iterable[Json]) -> bool:
    """Return whether a process or a pod of the service was made with an adapter."""
    return any(file.token in each["spec"].get("adapters", ()) for each in processes) or any(
        file.container in _downloads(each) for each in pods
    )


# --- pods -------------------------------------------------------------------------------------------------------------


def in_pods(file: AdapterFile, pods: Iterable[Json]) -> dict[str, AdapterOutcome]:
    """Return the outcomes of the pods that are not asked, by pod: old pods, and pods that still download."""
    found = {each["metadata"]["name"]: _of_pod(file, each) for each in pods if not _is_left_out(each)}
    return {pod: said for pod, said in sorted(found.items()) if said is not None}


def _is_left_out(pod: Json) -> bool:
    return is_foreign(pod) or bool(pod["metadata"]["deleting"])


def _of_pod(file: AdapterFile, pod: Json) -> AdapterOutcome | None:
    if file.container not in _downloads(pod):
        if not is_healthy(pod):
            return None
        return _waits(AdapterReason.RESTART_PENDING, "the pod was started without the adapter, and is replaced")
    for said in _problems(pod, file.container):
        return _failed(AdapterReason.DOWNLOAD_FAILED, said)
    if pod.get("init_running") == file.container:
        return _waits(AdapterReason.DOWNLOADING, "the pod downloads the adapter")
    return None


def _downloads(pod: Json) -> tuple[str, ...]:
    """Return the init containers of a pod that download adapters."""
    found: tuple[str, ...] = (pod.get("engine") or {}).get("adapters", ())
    return found


def _problems(pod: Json, container: str) -> Iterator[str]:
    for each in pod.get("problems") or ():
        if each.get("container") == container:
            yield ": ".join(str(each[part]) for part in ("reason", "message") if each.get(part)) or "it failed"


def _waits(reason: AdapterReason, message: str) -> AdapterOutcome:
    return AdapterOutcome(state="waiting", reason=reason, message=message)


def _failed(reason: AdapterReason, message: str) -> AdapterOutcome:
    return AdapterOutcome(state="failed", reason=reason, message=message[:_LONGEST_MESSAGE])
