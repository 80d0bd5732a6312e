"""The service of an adapter in the caches: whether this loop manages it, its engine, its pods and its processes.

`controller` calls it with an adapter of any dialect. An InferenceService names its engine. Of services of KServe and
llmaz the pods show it.
"""

from __future__ import annotations

from automation.cache.cluster_cache import ClusterCache
from automation.serving.adapters import planned_replicas
from automation.serving.adapters.deciding import engine_pods, refusal_of, running
from automation.serving.engine_start import EngineStart
from automation.status.ownership import held_by_upstream
from kubeapi.json_types import Json
from program.desired.adapter import Adapter, AdapterReplica
from program.dialects.llmkube.parse.adapter import file_of, is_on_hosts, runtime_of
from program.dialects.pods.llama_server import POSSIBLE, Refusal
from program.dialects.registry import KINDS, LLMKUBE, is_part_of_another


class Targets:
    """Finds the services of adapters. Reads caches only."""

    def __init__(self, cluster: ClusterCache) -> None:
        self._cluster = cluster

    def service(self, adapter: Adapter) -> Json | None:
        """Return the custom resource of an adapter's service; None if there is none."""
        return self._cluster.caches[adapter.dialect].get(KINDS[adapter.dialect], adapter.namespace, adapter.service)

    def manages(self, adapter: Adapter, service: Json) -> bool:
        """Return whether this loop manages a service, as `reconcile.services` does."""
        held = held_by_upstream(service, adapter.dialect)
        return not is_part_of_another(service) and self._cluster.is_ours(service, held=held)

    def engine(self, adapter: Adapter, service: Json | None) -> str:
        """Return the engine of a service; empty if it is unknown."""
        if adapter.dialect == LLMKUBE:
            return runtime_of(service) if service is not None else ""
        return next((str(pod["engine"]["runtime"]) for pod in self._pods(adapter)), "")

    def refusal(self, adapter: Adapter) -> Refusal:
        """Return why no pod of a service of KServe or llmaz can be started with downloaded adapters."""
        return refusal_of(self._pods(adapter)) if adapter.dialect != LLMKUBE else POSSIBLE

    def starts(self, adapter: Adapter) -> tuple[EngineStart, ...]:
        """Return the starts of the engines in healthy pods."""
        return running(self._pods(adapter))

    def processes(self, adapter: Adapter) -> list[Json]:
        """Return the HostProcesses of the service."""
        index = self._cluster.caches[adapter.dialect].index
        return planned_replicas.processes_of(index.objects(adapter.namespace, adapter.service))

    def is_on_hosts(self, adapter: Adapter, service: Json | None) -> bool:
        """Return whether a service runs on hosts, also before it has a process."""
        return bool(self.processes(adapter)) or (service is not None and is_on_hosts(service))

    def planned(self, adapter: Adapter, *, on_hosts: bool) -> dict[str, AdapterReplica]:
        """Return the replicas that are not asked, by pod or process."""
        file = file_of(adapter, on_host=on_hosts) if adapter.dialect == LLMKUBE else adapter.file
        if file is None:
            return {}
        if on_hosts:
            return {each.pod: each for each in planned_replicas.on_hosts(file, self.processes(adapter))}
        found = planned_replicas.in_pods(file, self._pods(adapter))
        return {pod: AdapterReplica(pod=pod, outcome=said) for pod, said in found.items()}

    def _pods(self, adapter: Adapter) -> list[Json]:
        pods = self._cluster.caches[adapter.dialect].index.pods(adapter.namespace, adapter.service)
        return pods if adapter.dialect == LLMKUBE else engine_pods(pods)
