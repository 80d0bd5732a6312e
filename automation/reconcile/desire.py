"""Parses a service and renders its objects, or returns the problem that prevents it.

Reads the caches, renders by `components.render`, and changes nothing. It proposes hosts; `act` reserves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from automation.approval.modes import Mode, mode_of
from automation.approval.policy_checker import Verdict
from automation.cache.cluster_cache import ClusterCache
from automation.cache.service_cache import ServiceCache
from automation.hosts.host_contexts import lacks_context
from automation.hosts.hosted import without_agent
from automation.hosts.registry import HostProposal
from automation.reconcile.node_paths import check_node_paths
from automation.reconcile.observe import Observed
from automation.serving.adapters.planned_replicas import is_in_a_replica
from automation.serving.request_scaling import RequestScaler
from automation.serving.scaling import pool_mark, scaled_elsewhere
from automation.serving.sleep import SleepController
from automation.serving.sleep_rule import State, hosted_sleep, sleeping_replicas
from components import naming
from components.extensions import unsupported_by_cluster
from components.options import RenderOptions
from components.render import render
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.adapter import AdapterFile
from program.desired.errors import DesiredError, ModelNotReady, NotYet, SpecInvalid
from program.desired.facts import Problem
from program.desired.keys import ServiceKey
from program.desired.replicas import with_replicas
from program.desired.service import DesiredService
from program.dialects.dialect import Dialect, Lookup
from program.dialects.status.model_wait import model_wait_s

_MARGIN_S = 0.1
"""Added to the wait for a Model, so that the wait is over in the pass after it."""


@dataclass(frozen=True)
class Desired:
    """The desired state of a service. Empty while its Model is missing or not Ready."""

    service: DesiredService | None = None
    rendered: RenderedService | None = None
    hosts: HostProposal | None = None
    """The proposed hosts of its replicas; None for a service in pods."""
    mode: Mode = "Apply"
    """Whether changes are made, wait for approval, or are not made."""
    sleep: State = ""
    """`asleep`: the service is unused and rendered without replicas. `waking`: it starts again. Empty: neither."""
    pool: str = ""
    """The ModelPool in which the service waits for its turn while it is `asleep`; empty for none."""
    problem: Problem | None = None
    unsupported: tuple[Problem, ...] = ()
    retry_after_s: float | None = None
    versions: tuple[str, ...] = field(default=(), compare=False)
    """The versions of the objects that were looked up."""


@dataclass(frozen=True)
class Desirer:
    """Computes the desired state of the services of one dialect. Any worker thread may call it."""

    cluster: ClusterCache
    cache: ServiceCache
    sleep: SleepController
    requests: RequestScaler
    policies: Callable[[Json], Verdict | None] = lambda _: None
    """Returns the result of the policies for a LoRAAdapter; None while there are no policies."""
    headers: Callable[[DesiredService], DesiredService] = lambda desired: desired
    """Returns a service on hosts with the headers of its models (`automation.models.hosted_headers`)."""

    def desire(
        self, key: ServiceKey, cr: Json, observed: Observed, dialect: Dialect, look: Lookup, *, options: RenderOptions
    ) -> Desired:
        """Parse and render a service. An expected error becomes the problem for the status."""
        registry = self.cluster.registry
        mode: Mode = "Apply"
        hosts: HostProposal | None = None
        try:
            self._check_name(key, cr)
            mode = mode_of(cr, self.cluster.namespace_annotations(key.namespace))
            parsed = dialect.parse(cr, look)
            check_node_paths(parsed.node_paths, options.node_path_roots)
            allowed = self._without_denied_adapters(parsed.desired, observed)
            scaled = self.requests.scaled(
                key,
                cr,
                allowed,
                observed,
                may_change=mode == "Apply",
                by_agent=self._has_agent(observed),
            )
            wanted = self.sleep.turns.with_group(allowed)
            if scaled is not None:
                # A service that sleeps keeps its hosts.
                wanted = with_replicas(wanted, max(1, scaled.replicas))
            hosts = registry.propose(wanted, created=str(cr["metadata"].get("creationTimestamp", "")))
            service = registry.with_contexts(registry.with_hosts(wanted, hosts), hosts, observed.host_processes)
            if lacks_context(service, observed.host_processes):
                service = registry.with_contexts(self.headers(service), hosts, observed.host_processes)
            if scaled is not None and not scaled.replicas:
                service = with_replicas(service, 0)
            # Also for a service that is scaled by requests, so that one that was a member of a pool loses its grant.
            state = self._sleep_state(key, service, observed, mode)
            sleep = (scaled.sleep if scaled is not None else "") or state
            pool = self._pool(key, service, observed, mode)
            options = options.model_copy(
                update={
                    "claim_exists": self._claim_exists(key, observed, options),
                    "scaled_elsewhere": scaled_elsewhere(service, observed.deployment),
                    "asleep": sleep == "asleep",
                    "requests_autoscaled": scaled is not None and scaled.by_autoscaler,
                    "pool": pool,
                }
            )
            return Desired(
                service,
                render(service, options),
                hosts=hosts,
                mode=mode,
                sleep=sleep,
                pool=pool,
                unsupported=(
                    *parsed.unsupported,
                    *unsupported_by_cluster(service, options),
                    *without_agent(registry, service),
                    *self.sleep.unsupported(service),
                ),
                retry_after_s=hosts.decision.retry_after_s if hosts is not None else None,
            )
        except SpecInvalid as error:
            return Desired(problem=_problem_of(error, terminal=True), hosts=hosts, mode=mode)
        except ModelNotReady as error:
            # The status reads the Model and reports its state as LLMKube does. A change of the Model enqueues the
            # service. A new or edited service is enqueued once more at the end of its wait, to report that the Model is
            # missing.
            wait_s = 0.0 if error.found else model_wait_s(cr, now=datetime.now(UTC))
            return Desired(mode=mode, retry_after_s=wait_s + _MARGIN_S if wait_s else None)
        except NotYet as error:
            problem = _problem_of(error, terminal=False)
            return Desired(problem=problem, hosts=hosts, mode=mode, retry_after_s=error.retry_after_s)

    def _without_denied_adapters(self, desired: DesiredService, observed: Observed) -> DesiredService:
        """Leave out the adapters that a mandatory policy denies.

        Replicas that have such an adapter keep it, because a policy that changes, or that fails to be evaluated, must
        not restart them. The gateway sends no request for it.
        """

        def keeps(file: AdapterFile) -> bool:
            cr = self.cache.get(kinds.LORA_ADAPTERS, desired.key.namespace, file.resource)
            verdict = self.policies(cr) if cr is not None else None
            is_denied = verdict is not None and verdict.problem is not None
            return not is_denied or is_in_a_replica(file, observed.host_processes.values(), observed.pods)

        kept = tuple(each for each in desired.adapters if keeps(each))
        return desired if kept == desired.adapters else desired.model_copy(update={"adapters": kept})

    def _sleep_state(self, key: ServiceKey, service: DesiredService, observed: Observed, mode: Mode) -> State:
        if mode == "Apply":
            state = self.sleep.state(key, service, observed)
        else:
            # The service stays asleep or awake, as it is.
            state = "asleep" if sleeping_replicas(observed.deployment) is not None else ""
        return state or hosted_sleep(service, observed)

    def _pool(self, key: ServiceKey, service: DesiredService, observed: Observed, mode: Mode) -> str:
        """Return the pool in which a sleeping service waits; empty for none."""
        if service.by_requests is not None and service.host_placement is None:
            # It is no member any more. The mark of its last sleep may still be there.
            return ""
        return self.sleep.pool(key, observed) if mode == "Apply" else pool_mark(observed.deployment)

    def _has_agent(self, observed: Observed) -> bool:
        """Return whether an agent runs a process of the service."""
        hosts = {str(each["spec"]["host"]) for each in observed.host_processes.values()}
        found = (self.cluster.registry.capacity(host) for host in hosts)
        return any(each is not None and not each.by_ssh for each in found)

    def _claim_exists(self, key: ServiceKey, observed: Observed, options: RenderOptions) -> bool:
        if options.claim_mode == "shared":
            return observed.claim_exists
        claim = self.cluster.claims.get(key.namespace, naming.cache_claim(key.name, "perService"))
        return claim is not None and not claim["metadata"]["deleting"]

    def _check_name(self, key: ServiceKey, cr: Json) -> None:
        """Refuse the name of an InferenceService whose Kubernetes Service belongs to another one (`a.b` and `a-b`).

        The service that has the Kubernetes Service keeps it. Before it exists, it belongs to the older service, by
        creationTimestamp, which counts whole seconds. Raises SpecInvalid.
        """
        rivals = self.cache.index.rivals(key.namespace, key.name)
        if not rivals or self._has_service(key.namespace, key.name):
            return
        for rival in rivals:
            other = self.cache.get(self.cache.kind, key.namespace, rival)
            if other is None:
                continue
            if self._has_service(key.namespace, rival) or _age_key(other) < _age_key(cr):
                raise SpecInvalid(
                    field="metadata.name",
                    reason="NameTaken",
                    why=f"`{key.name}` needs the Service `{naming.service_name(key.name)}`, which belongs to "
                    f"InferenceService `{rival}`; choose a name that differs by more than `.` and `-`",
                )

    def _has_service(self, namespace: str, name: str) -> bool:
        return ("Service", naming.service_name(name)) in self.cache.index.objects(namespace, name)


def _problem_of(error: DesiredError, *, terminal: bool) -> Problem:
    return Problem(reason=error.reason, message=error.why, field=error.field, terminal=terminal)


def _age_key(cr: Json) -> tuple[str, str]:
    return cr["metadata"].get("creationTimestamp", ""), cr["metadata"]["name"]
