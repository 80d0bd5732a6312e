"""Makes the controller of services with its parts. Called by `assembly`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from automation.adoption.release import Release
from automation.approval.approval import Approval
from automation.approval.resource_policies import ResourcePolicies
from automation.approval.resource_versions import ResourceVersions
from automation.cache.cluster_cache import ClusterCache
from automation.certificates.engine_keys import EngineKeys
from automation.certificates.issuing import CertificateIssuer
from automation.certificates.key_age import KeyAges
from automation.controller import Controller
from automation.drift.drift_watch import DriftWatch
from automation.engine.batches import Batcher
from automation.history.recorder import RevisionRecorder
from automation.models.hosted_headers import HostedHeaders
from automation.models.model_probe import ModelProbe
from automation.reconcile.act import Actor
from automation.reconcile.act_on_pods import PodActor
from automation.reconcile.desire import Desirer
from automation.reconcile.outcomes import Outcomes
from automation.reconcile.remover import Remover
from automation.reconcile.report import Reporter
from automation.reconcile.review import Reviewer
from automation.reconcile.services import Services
from automation.serving.checks import Checks
from automation.serving.request_scaling import RequestScaler
from automation.serving.sleep import SleepController
from automation.status.event_recorder import EventRecorder
from automation.status.writer import StatusWriter
from automation.telemetry.metrics import Metrics
from components.providers.ignored_objects import IgnoredFields
from components.render import RenderOptions
from kubeapi.client import KubeClient
from program.desired.keys import ServiceKey
from program.dialects.registry import LLMKUBE

Requeue = Callable[[ServiceKey, float], None]


def make_controller(
    client: KubeClient,
    *,
    cluster: ClusterCache,
    batcher: Batcher,
    checks: Checks,
    options: RenderOptions,
    recorder: EventRecorder,
    requeue: Requeue,
    requeue_if: Callable[[ServiceKey, float, Callable[[], bool]], None],
    approval: Approval,
    of_resources: ResourcePolicies,
    versions: ResourceVersions,
    sleep: SleepController,
    requests: RequestScaler,
    metrics: Metrics,
    history: RevisionRecorder,
    ignored: IgnoredFields,
    issuer: CertificateIssuer,
    probe: ModelProbe,
) -> tuple[Controller, Outcomes]:
    """Make the controller, and the recorder of the outcomes of engine runs."""

    def clock() -> datetime:
        return datetime.now(UTC)

    headers = HostedHeaders(probe, requeue).told
    services: Mapping[str, Services] = {
        name: Services(
            cluster, cache, Desirer(cluster, cache, sleep, requests, of_resources.verdict, headers), versions.is_held
        )
        for name, cache in cluster.caches.items()
    }
    on_written = {LLMKUBE: metrics.on_service_status}
    statuses = {
        name: StatusWriter(
            client,
            each.info.kind,
            mark=each.info.status_mark,
            shared=each.info.shared_conditions,
            on_written=on_written.get(name),
            cached=each.get,
        )
        for name, each in services.items()
    }
    engine_keys = EngineKeys(client)
    key_ages = KeyAges(client, recorder, replaced=metrics.engine_key_replacements.inc)
    metrics.engine_key_age.set_function(key_ages.oldest_s)
    drift = DriftWatch(client, requeue=requeue, ignored=ignored)

    def drop_service(key: ServiceKey) -> None:
        """Drop the records of a service in every part."""
        release.note_owned(key)
        statuses[key.dialect].drop_object(key.namespace, key.name)
        services[key.dialect].drop_service(key)
        issuer.drop_service(key)
        engine_keys.drop_service(key)
        key_ages.drop_service(key)
        checks.drop_service(key)
        approval.drop_service(key)
        sleep.drop_service(key)
        requests.drop_service(key)
        cluster.quotas.release(key)
        cluster.registry.release(key)
        drift.drop_service(key)
        history.drop_service(key)
        batcher.runs.drop_service(key)

    remover = Remover(client, batcher, services, drop_service=drop_service)
    release = Release(cluster, batcher, lambda key: statuses[key.dialect], drop_service=drop_service, requeue=requeue)
    actor = Actor(
        client=client,
        cluster=cluster,
        batcher=batcher,
        approval=approval,
        drift=drift,
        remover=remover,
        recorder=recorder,
        pods=PodActor(client, checks.replicas),
        requeue=requeue,
        issuer=issuer,
        engine_keys=engine_keys,
        key_ages=key_ages,
        sleep=sleep,
    )

    def recheck(key: ServiceKey, delay_s: float) -> None:
        """Enqueue a service if the engine still works on it after `delay_s` seconds. Its outcome enqueues it anyway."""
        requeue_if(key, delay_s, lambda: batcher.newest(key) is not None)

    controller = Controller(
        services=services,
        statuses=statuses,
        cluster=cluster,
        options=options,
        batcher=batcher,
        approval=approval,
        checks=checks,
        reviewer=Reviewer(cluster, checks, approval, drift),
        actor=actor,
        reporter=Reporter(
            services, statuses, cluster.registry, batcher, drift, approval, checks, recorder, history, recheck
        ),
        remover=remover,
        release=release,
        requeue=requeue,
        recheck=recheck,
        clock=clock,
    )
    outcomes = Outcomes(client, cluster, batcher, services, drift, recorder, requeue, clock, history)
    return controller, outcomes
