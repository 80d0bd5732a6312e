"""Writes the status of KServe's LLMInferenceServiceConfigs: whether they are valid, and which services use them.

The caches report which config, or which reference to one, has changed. A second later, only configs of those names are
checked. The module that checks them is imported when there is one, because most clusters have none.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC, datetime

import structlog

from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import KSERVE_NAMESPACE
from automation.leadership.shards import WHOLE, Shard
from automation.status.ownership import written_by_another
from automation.status.writer import StatusWriter
from automation.workqueue.debounce import Debounce
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import DesiredError
from program.desired.keys import ServiceKey
from program.dialects.kserve.status.config_use import PEER_FINALIZER, is_held_by_peer, referred_to

log = structlog.get_logger(__name__)

DIALECT = "kserve"
MARK = "Reconciling"
"""A condition that every status of Herdsman has and no status of KServe's."""
WRITE_EVERY_S = 1.0
RETRY_S = 10.0


class KserveConfigs:
    """Keeps the status of the configs that this loop manages. Call `start` after the caches are filled."""

    def __init__(
        self,
        client: KubeClient,
        cluster: ClusterCache,
        *,
        namespaces: tuple[str, ...] = (),
        shard: Shard = WHOLE,
    ) -> None:
        """The loop watches `namespaces` (none: all). `shard` is the part of them that this loop leads."""
        self._client = client
        self._cluster = cluster
        self._caches = cluster.caches[DIALECT]
        self._namespaces = frozenset(namespaces)
        self._shard = shard
        self._writer = StatusWriter(
            client,
            kinds.LLM_CONFIGS,
            mark=MARK,
            cached=lambda namespace, name: self._caches.get(kinds.LLM_CONFIGS, namespace, name),
        )
        self._lock = threading.Lock()
        self._referred: dict[ServiceKey, tuple[str, ...]] = {}
        self._changed: set[str] = set()
        self._failed: set[str] = set()
        self._problems: dict[tuple[str, str], tuple[str, int, DesiredError | None]] = {}
        self._soon = Debounce(self.report, delay_s=WRITE_EVERY_S)
        self._retry = Debounce(self._again, delay_s=RETRY_S)

    def start(self) -> None:
        """Write the statuses of all configs now, and of each config after a change."""
        self._caches.on_change = self._on_change
        for service in self._caches.listed(kinds.LLM_SERVICES):
            self._on_change(kinds.LLM_SERVICES, None, service)
        self.ask_all()

    def ask_all(self) -> None:
        """Request a check of all configs."""
        self._ask(*(config["metadata"]["name"] for config in self._caches.listed(kinds.LLM_CONFIGS)))

    def _on_change(self, kind: Kind, old: Json | None, new: Json | None) -> None:
        """Note a change. Called in the informer's thread."""
        metadata = (new or old or {})["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if kind is kinds.LLM_CONFIGS:
            self._ask(name)
        elif kind is kinds.LLM_SERVICES:
            key = ServiceKey(DIALECT, namespace, name)
            with self._lock:
                service = self._caches.get(kind, namespace, name)
                names = referred_to(service) if service is not None else ()
                before = self._referred.pop(key, ())
                if names:
                    self._referred[key] = names
            if before != names:
                self._ask(*before, *names)

    def _ask(self, *names: str) -> None:
        if names:
            with self._lock:
                self._changed.update(names)
            self._soon.trigger()

    def report(self) -> None:
        """Check the configs whose names were noted, and write each status that has changed."""
        with self._lock:
            names, self._changed = self._changed, set()
            referred = {key: found for key, found in self._referred.items() if not names.isdisjoint(found)}
        configs = [each for each in self._caches.listed(kinds.LLM_CONFIGS) if each["metadata"]["name"] in names]
        there = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in configs}
        self._forget({at for at in self._problems if at[1] in names} - there)
        users: dict[tuple[str, str], list[ServiceKey]] = {at: [] for at in there}
        for key, found in referred.items():
            for name in names.intersection(found):
                # The same order as the lookup in `configuration`: first the service's namespace, then KServe's.
                at = (key.namespace, name) if (key.namespace, name) in there else (KSERVE_NAMESPACE, name)
                if at in users:
                    users[at].append(key)
        for config in configs:
            metadata = config["metadata"]
            try:
                self._tend(config, users[metadata["namespace"], metadata["name"]])
            except Exception as error:  # One config must not keep the others from being checked.
                self._say(error, f"{metadata['namespace']}/{metadata['name']}")
                with self._lock:
                    self._failed.add(metadata["name"])
                self._retry.trigger()

    def _say(self, error: Exception, config: str) -> None:
        if isinstance(error, KubeError):
            log.warning("Could not reconcile a config", config=config, error=str(error))
        else:
            log.exception("Failed to reconcile a config", config=config)

    def _again(self) -> None:
        with self._lock:
            failed, self._failed = self._failed, set()
        self._ask(*failed)

    def _tend(self, config: Json, users: list[ServiceKey]) -> None:
        namespace, name = config["metadata"]["namespace"], config["metadata"]["name"]
        if not self._shard.contains(namespace) or (self._namespaces and namespace not in self._namespaces):
            return
        if not self._is_ours(config):
            if self._writer.has_written(namespace, name):
                self._writer.leave(config)
            return
        if "deletionTimestamp" in config["metadata"] and not users:
            self._let_go(config)
            return
        from program.dialects.kserve.status.config import config_status

        current = self._writer.latest(config)
        status = config_status(current, users, self._problem(config), now=datetime.now(UTC))
        if status is not current.get("status"):
            self._writer.write(current, status)

    def _is_ours(self, config: Json) -> bool:
        """Return whether this loop manages a config. One that KServe's controller has marked needs an annotation."""
        held = is_held_by_peer(config) or written_by_another(config.get("status"), MARK)
        return self._cluster.is_ours(config, held=held)

    def _problem(self, config: Json) -> DesiredError | None:
        """Validate a config once for each generation, because that is the most expensive step."""
        metadata = config["metadata"]
        at, version = (metadata["namespace"], metadata["name"]), (metadata["uid"], metadata["generation"])
        known = self._problems.get(at)
        if known is None or known[:2] != version:
            from program.dialects.kserve.status.config import config_problem

            known = self._problems[at] = (*version, config_problem(config))
        return known[2]

    def _let_go(self, config: Json) -> None:
        """Remove KServe's finalizer from an unused config.

        After KServe's controller is gone, nothing else removes it.
        """
        metadata = config["metadata"]
        if not is_held_by_peer(config):
            return
        kept = [each for each in metadata["finalizers"] if each != PEER_FINALIZER]
        change = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "finalizers": kept}
        with suppress(NotFound):
            self._client.patch(
                kinds.LLM_CONFIGS,
                metadata["namespace"],
                metadata["name"],
                {"metadata": change},
                field_manager=naming.FIELD_MANAGER,
            )

    def _forget(self, gone: set[tuple[str, str]]) -> None:
        for at in gone:
            self._problems.pop(at, None)
            self._writer.drop_object(*at)
