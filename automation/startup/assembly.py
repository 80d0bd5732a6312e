"""Assembles a leading loop: provider, engine, caches, controllers. Called by `loop` after it became the leader.

Everything that must be closed is pushed on the caller's stack, in the order in which it is made. Nothing runs before
`Parts.start`, which `loop` calls when the caches are filled. The exception is the conversion webhook: the API server
may need it to fill the caches.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from agent.proxy.collector import ProxyCollector
from automation.admission.quota_controller import QuotaController
from automation.approval.approval import Approval, comparing, every_service, is_current, services_with_adapters
from automation.approval.modes import Modes, read_namespace_annotations
from automation.approval.policy_checker import PolicyChecker
from automation.approval.resource_policies import ResourcePolicies
from automation.approval.resource_versions import ResourceVersions
from automation.cache.cluster_cache import ClusterCache
from automation.certificates.issuing import CertificateIssuer, CertificateWatch
from automation.controller import Controller
from automation.engine.batches import Batcher, BatchReport
from automation.engine.gone_namespaces import GoneNamespaces
from automation.engine.port import ServiceOutcome
from automation.engine.pulumi_engine import PulumiEngine
from automation.engine.submissions import Submission
from automation.external_metrics.following import MetricsApi
from automation.history.recorder import RevisionRecorder
from automation.history.resources import ResourceHistory
from automation.hosts.endpoints import HostEndpoints
from automation.hosts.lost_hosts import HostConditions, LostHosts
from automation.hosts.ssh_hosts import run_ssh_hosts
from automation.leadership.fencing import Fence
from automation.leadership.lease_observations import FormerLoop
from automation.leadership.shards import WHOLE, Shard
from automation.models.model_controller import ModelController
from automation.models.model_probe import ModelProbe
from automation.models.prefetch import Prefetcher
from automation.models.probe_marks import ProbeMarks
from automation.models.source_credentials import SecretReader
from automation.models.transfers import TransferWatch
from automation.serving.adapters.controller import LoraAdapters
from automation.serving.checks import Checks
from automation.serving.request_scaling import RequestScaler
from automation.serving.sleep import SleepController
from automation.serving.turns.pools import ModelPools
from automation.serving.wake import own_address
from automation.settings import Settings
from automation.startup.controller import make_controller
from automation.startup.options import render_options, source_policy
from automation.status.event_recorder import EventRecorder
from automation.status.kserve_configs import KserveConfigs
from automation.status.model_routers import ModelRouterStatuses
from automation.telemetry.host_metrics import HostCollector
from automation.telemetry.metrics import Metrics
from automation.telemetry.service_metrics import ServiceCollector
from automation.workqueue.precedence import Precedence
from automation.workqueue.queue import WorkQueue
from automation.workqueue.resync import Resync
from components.providers.ignored_objects import IgnoredFields
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import PluginServer
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.informer import Fault
from program.desired.keys import ServiceKey
from tools import toolchain

log = structlog.get_logger(__name__)


class ModelKey(NamedTuple):
    """One Model, as a key of the model queue."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Leadership:
    """The fence of the lease, and the shard of the namespaces that this loop leads."""

    fence: Fence
    shard: Shard = WHOLE
    former: tuple[FormerLoop, ...] = ()
    """The loops that led before."""


@dataclass(frozen=True)
class Parts:
    """The parts of a leading loop."""

    cluster: ClusterCache
    engine: PulumiEngine
    batcher: Batcher
    controller: Controller
    models: ModelController
    probe: ModelProbe
    start: Callable[[], None]
    """Start what must not begin before the caches are filled."""
    faults: Callable[[], Iterable[Fault]]
    """Return what is wrong with the informers of all parts."""


def assemble(
    client: KubeClient,
    stack: ExitStack,
    *,
    settings: Settings,
    metrics: Metrics,
    services: WorkQueue[ServiceKey],
    models: WorkQueue[ModelKey],
    leadership: Leadership,
) -> Parts:
    """Make all parts and connect them. No part may write after `leadership.fence` has fallen.

    Raises ToolMissing when there is no Pulumi CLI, PolicyUnreadable when a policy is invalid.
    """

    def in_bulk() -> bool:
        return batcher.runs.in_bulk()

    recorder = EventRecorder(client, on_dropped=metrics.events_dropped.inc, precedence=Precedence(in_bulk))
    stack.callback(recorder.stop)
    ignored = IgnoredFields()
    engine = _engine(client, stack, settings, leadership, ignored)
    cluster = ClusterCache(
        client,
        namespaces=settings.namespaces,
        on_relist=metrics.on_relist,
        on_failure=metrics.on_informer_failure,
        enqueue=services.add,
        enqueue_after=services.add_after,
        enqueue_model=lambda namespace, name: models.add(ModelKey(namespace, name)),
        host_move_after_s=settings.host_move_after_s,
        controller_class=settings.controller_class,
        api_check_s=settings.api_check_s,
    )
    shard = leadership.shard
    of_services = ServiceCollector(
        services=lambda: [
            (dialect, cr) for dialect, cr in cluster.list_services() if shard.contains(cr["metadata"]["namespace"])
        ],
        models=lambda: [each for each in cluster.models.list() if shard.contains(each["metadata"]["namespace"])],
        quotas=cluster.quotas.list_usages if shard.is_first else list,
    )
    for collector in (
        of_services,
        *((HostCollector(cluster.registry.allocations),) if shard.is_first else ()),
    ):
        metrics.registry.register(collector)
        stack.callback(metrics.registry.unregister, collector)

    def on_outcome(submission: Submission, outcome: ServiceOutcome) -> None:
        outcomes.record(submission, outcome)

    def withdrawn(namespace: str, submissions: tuple[Submission, ...]) -> frozenset[ServiceKey]:
        return outcomes.withdrawn(namespace, submissions)

    def on_known(namespace: str, held: frozenset[ServiceKey]) -> None:
        if cluster.namespaces.get(None, namespace) is None:
            gone_namespaces.enqueue(namespace)
        for key in held:
            of_dialect = controller.services.get(key.dialect)
            if of_dialect is not None and of_dialect.get(key.namespace, key.name) is None:
                services.add(key)

    def on_batch(report: BatchReport) -> None:
        metrics.on_batch(report.result, report.services, report.duration_s)
        metrics.engine_cli_processes.inc(report.cli_processes)

    batcher = Batcher(
        engine,
        max_parallel=settings.engine_parallelism,
        timeout_s=settings.engine_timeout_s,
        on_outcome=on_outcome,
        on_batch=on_batch,
        withdrawn=withdrawn,
        on_known=on_known,
    )
    gone_namespaces = GoneNamespaces(client, batcher.discard_namespace)
    stack.callback(gone_namespaces.stop)
    cluster.on_namespace_gone = lambda namespace: (
        gone_namespaces.enqueue(namespace) if shard.contains(namespace) else None
    )
    checks = Checks(client, settings=settings, metrics=metrics, requeue=services.add_after)
    stack.callback(checks.close)
    address = settings.proxy_address or own_address(client.server)

    def policies_changed() -> None:
        every_service(cluster, services.add_after)
        of_resources.changed()

    policies = PolicyChecker(settings.policies, requeue=services.add_after, changed=policies_changed)
    stack.callback(policies.close)
    stack.callback(policies.register(metrics.registry))
    of_resources = ResourcePolicies(policies, namespace_labels=cluster.namespace_labels)
    of_resources.on_change.append(lambda: services_with_adapters(cluster, services.add_after))
    history = RevisionRecorder(
        client, kept=settings.revision_history_limit, on_dropped=metrics.revisions_dropped.inc, is_busy=in_bulk
    )
    stack.callback(history.stop)
    past_versions = ResourceHistory(history)
    versions = ResourceVersions(
        policies=of_resources.verdict,
        annotations=cluster.namespace_annotations,
        annotations_now=functools.partial(read_namespace_annotations, client),
    )

    def pool_gone(namespace: str, name: str) -> None:
        metrics.drop_pool(namespace, name)
        past_versions.drop(kinds.MODEL_POOLS.kind, namespace, name)

    pools = ModelPools(
        client,
        cluster,
        address=address,
        requeue=services.add_after,
        record=recorder.record,
        on_written=metrics.on_pool_status,
        on_gone=pool_gone,
        versions=versions,
        note=past_versions.note,
        shard=shard,
    )
    sleep = SleepController(client, address=address, requeue=services.add_after, turns=pools)
    stack.callback(sleep.close)
    metrics_api = MetricsApi(
        client,
        service=settings.external_metrics_name,
        changed=lambda: every_service(cluster, services.add_after),
        check_every_s=settings.api_check_s,
    )
    stack.callback(metrics_api.stop)
    requests = RequestScaler(client, requeue=services.add_after, has_metrics_api=metrics_api.is_own)
    stack.callback(requests.close)
    proxied = ProxyCollector(sleep.proxy)
    metrics.registry.register(proxied)
    stack.callback(metrics.registry.unregister, proxied)
    modes = Modes(comparing(client, render_options(settings)), is_current=lambda cr: is_current(client, cr))
    issuer = CertificateIssuer(client)
    probe = ModelProbe(
        source_policy(settings),
        hub_url=settings.hub_url,
        read_secret=SecretReader(client).read,
        marks=ProbeMarks(_work_root(settings, shard) / "looks"),
    )
    stack.callback(probe.close)
    controller, outcomes = make_controller(
        client,
        approval=Approval(policies, modes),
        of_resources=of_resources,
        versions=versions,
        cluster=cluster,
        batcher=batcher,
        checks=checks,
        options=render_options(settings),
        recorder=recorder,
        requeue=services.add_after,
        requeue_if=services.add_after_if,
        sleep=sleep,
        requests=requests,
        metrics=metrics,
        history=history,
        ignored=ignored,
        issuer=issuer,
        probe=probe,
    )
    model_controller, prefetcher = _models(client, stack, settings, metrics, recorder, cluster, probe, models, shard)

    # Before the caches are filled: the API server calls the webhook for objects that are stored in another version.
    _convert(client, stack, settings, shard)

    def start() -> None:
        gone_namespaces.start()
        history.renew(namespaces=settings.namespaces, has=shard.contains)
        quotas = QuotaController(client, cluster, shard=shard)
        configs = KserveConfigs(client, cluster, namespaces=settings.namespaces, shard=shard)
        routers = ModelRouterStatuses(
            client,
            cluster,
            record=recorder.record,
            gateway_url=settings.gateway_url,
            shard=shard,
            versions=versions,
            note=past_versions.note,
            on_gone=past_versions.drop,
        )
        adapters = LoraAdapters(
            client,
            cluster,
            recorder=recorder,
            versions=versions,
            note=past_versions.note,
            on_gone=past_versions.drop,
            shard=shard,
        )
        of_resources.on_change += [routers.request_report, pools.request_report, adapters.request_pass]
        quotas.start()
        configs.start()
        routers.start()
        stack.callback(routers.stop)
        pools.start()
        adapters.start()
        stack.callback(adapters.stop)

        def again(delay_s: Callable[[], float]) -> None:
            for key in cluster.every_key():
                services.add_after(key, delay_s())
            for obj in cluster.models.list():
                models.add_after(ModelKey(obj["metadata"]["namespace"], obj["metadata"]["name"]), delay_s())
            quotas.request_report()
            configs.ask_all()
            routers.request_report()
            pools.request_report()
            adapters.request_pass()

        resync = Resync(again, every_s=settings.resync_s)
        resync.start()
        stack.callback(resync.stop)
        certificates = CertificateWatch(issuer, requeue=services.add_after)
        certificates.start()
        stack.callback(certificates.stop)
        policies.start()
        sleep.start(settings.namespaces)
        requests.start()
        if settings.external_metrics_port >= 0:
            metrics_api.start()
        if not shard.is_first:
            return
        _serve_metrics(client, stack, settings, requests)
        lost_hosts = LostHosts(
            client,
            liveness=cluster.registry.liveness,
            leases=cluster.host_leases,
            slices=cluster.endpoint_slices,
            conditions=HostConditions(client, record=recorder.record),
            active=leadership.fence.holds_lease,
        )
        cluster.registry.on_change.append(lost_hosts.host_changed)
        lost_hosts.start()
        stack.callback(lost_hosts.stop)
        endpoints = HostEndpoints(
            client,
            liveness=cluster.registry.liveness,
            namespaces=settings.namespaces,
            pod_ranges=lambda: (cidr for node in cluster.nodes.list() for cidr in node["podRanges"]),
            active=leadership.fence.holds_lease,
        )
        cluster.registry.on_change.append(endpoints.host_liveness_changed)
        endpoints.start()
        stack.callback(endpoints.stop)
        stack.callback(run_ssh_hosts(client, settings, source_policy(settings), recorder.record).stop)

    def faults() -> Iterable[Fault]:
        return itertools.chain(cluster.faults(), prefetcher.jobs.faults())

    return Parts(cluster, engine, batcher, controller, model_controller, probe, start, faults)


def _convert(client: KubeClient, stack: ExitStack, settings: Settings, shard: Shard) -> None:
    """Serve conversions of KServe's objects if a port is set. Only the loop of the first shard does."""
    if settings.conversion_port < 0 or not shard.is_first:
        return
    from automation.webhook.webhook import ConversionServer

    server = ConversionServer(
        client,
        port=settings.conversion_port,
        address=settings.conversion_address,
        service=settings.conversion_service_port,
        peer_crds=settings.conversion_peer_crds,
        lifetime=datetime.timedelta(seconds=settings.conversion_certificate_s),
    )
    try:
        server.start()
    except OSError as error:
        log.error("Cannot listen for conversions", port=settings.conversion_port, error=str(error))
        return
    stack.callback(server.close)


def _serve_metrics(client: KubeClient, stack: ExitStack, settings: Settings, requests: RequestScaler) -> None:
    """Serve the requests at the gateways to autoscalers if a port is set."""
    if settings.external_metrics_port < 0:
        return
    from automation.external_metrics.serving import ExternalMetrics

    server = ExternalMetrics(
        client,
        requests.values,
        service=settings.external_metrics_name,
        port=settings.external_metrics_port,
    )
    try:
        server.start()
    except OSError as error:
        log.error("Cannot listen for external metrics", port=settings.external_metrics_port, error=str(error))
        return
    stack.callback(server.close)


def _engine(
    client: KubeClient, stack: ExitStack, settings: Settings, leadership: Leadership, ignored: IgnoredFields
) -> PulumiEngine:
    provider = PluginServer(KubernetesProvider(client, remember="identity", ignored=ignored))
    stack.callback(provider.stop)
    pulumi = toolchain.find(toolchain.tool_named("pulumi"))
    engine = PulumiEngine(
        provider_port=provider.start(),
        state_url=settings.state,
        work_root=_work_root(settings, leadership.shard),
        pulumi=pulumi.path,
        passphrase_file=settings.passphrase_file,
        passphrase=settings.passphrase_text,
        sole=lambda: settings.leader_elect and leadership.fence.holds_lease(),
        fence=leadership.fence,
        former=leadership.former,
        # An override may be a program that does more than Pulumi's, at its start too.
        starts_ahead=settings.engine_starts_ahead and pulumi.found_by != "override",
    )
    stack.callback(engine.close)
    return engine


def _work_root(settings: Settings, shard: Shard) -> pathlib.Path:
    """Return the working directory of a shard: two shards on one machine share only the state."""
    root = settings.work_directory
    return root if shard.of == 1 else root / f"shard-{shard.number}-of-{shard.of}"


def _models(
    client: KubeClient,
    stack: ExitStack,
    settings: Settings,
    metrics: Metrics,
    recorder: EventRecorder,
    cluster: ClusterCache,
    probe: ModelProbe,
    queue: WorkQueue[ModelKey],
    shard: Shard,
) -> tuple[ModelController, Prefetcher]:
    def requeue(namespace: str, name: str, delay_s: float = 0.0) -> None:
        queue.add_after(ModelKey(namespace, name), delay_s)

    transfers = TransferWatch(client, changed=requeue)
    stack.callback(transfers.close)
    cluster.on_pod = lambda old, new: (
        transfers.pod_changed(old, new) if shard.contains((new or old or {})["metadata"]["namespace"]) else None
    )
    prefetcher = Prefetcher(
        client,
        options=render_options(settings),
        namespaces=settings.namespaces,
        changed=requeue,
        requeue=requeue,
        transfers=transfers,
        on_relist=metrics.on_relist,
    )
    prefetcher.jobs.start()
    stack.callback(prefetcher.jobs.stop)
    controller = ModelController(
        client=client,
        models=cluster.models,
        claims=cluster.claims,
        nodes=cluster.nodes,
        probe=probe,
        requeue=requeue,
        recorder=recorder,
        transfers=transfers,
        prefetcher=prefetcher,
        on_written=metrics.on_model_status,
        on_gone=metrics.drop_model,
        ours=cluster.model_is_ours,
    )
    return controller, prefetcher
