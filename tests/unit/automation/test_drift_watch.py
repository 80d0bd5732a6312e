"""The drift check of a pass: no request while Herdsman owns every field, and only objects that were read count."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from automation.drift.contest import BASE_S, FREE_REPAIRS
from automation.drift.drift_watch import Considered, DriftWatch
from automation.drift.field_drift import owned_text
from automation.reconcile.plan import LastRun, LiveObject, ObjectName, make_plan
from components import naming
from components.providers.ignored_objects import IgnoredFields
from components.rendered import RenderedObject, RenderedService
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey

KEY = ServiceKey("llmkube", "prod", "chat")
NOW = datetime(2026, 11, 22, tzinfo=UTC)
KNOWN = frozenset({"Deployment", "HorizontalPodAutoscaler", "Service"})


def rendered(**policy: Any) -> RenderedService:
    def obj(kind: str, spec: Json) -> RenderedObject:
        manifest = {"kind": kind, "metadata": {"name": "chat", "namespace": "prod"}, "spec": spec}
        return RenderedObject(kind.lower(), naming.TYPE_SERVICE, manifest, **policy)

    return RenderedService.of(
        KEY, (obj("Service", {"type": "ClusterIP", "x": 1}), obj("Deployment", {"paused": False}))
    )


@dataclass
class Cluster:
    """The objects of a fake API server; `cached` returns them as the loop's cache has them."""

    objects: dict[tuple[str, str], Json] = field(default_factory=dict)
    asked: int = 0

    def get(self, kind: Kind, _namespace: str, name: str) -> Json:
        self.asked += 1
        try:
            return self.objects[kind.kind, name]
        except KeyError:
            raise NotFound(404, "NotFound", "gone") from None

    def make(self, service: RenderedService) -> None:
        for each in service.objects:
            fields = {
                "f:metadata": {"f:annotations": {f"f:{naming.ANNOTATION_APPLIED_HASH}": {}}},
                "f:spec": {f"f:{name}": {} for name in each.manifest["spec"]},
            }
            ours = {"manager": "herdsman", "operation": "Apply", "fieldsV1": fields}
            metadata = {**each.manifest["metadata"], "managedFields": [ours]}
            self.objects[each.kind, each.name] = {**each.manifest, "metadata": metadata}

    def edit(self, value: str, manager: str = "kubectl-edit") -> None:
        service = self.objects["Service", "chat"]
        service["spec"] = {**service["spec"], "type": value}
        ours = service["metadata"]["managedFields"][0]
        ours["fieldsV1"] = {**ours["fieldsV1"], "f:spec": {"f:x": {}}}
        theirs = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:type": {}}}}
        service["metadata"]["managedFields"] = [ours, theirs]

    def cached(self) -> tuple[LiveObject, ...]:
        return tuple(
            LiveObject(
                ObjectName(*name),
                uid=f"u-{name}",
                applied_hash=(obj["metadata"].get("annotations") or {}).get(naming.ANNOTATION_APPLIED_HASH, ""),
                owned=owned_text(obj),
                content=hash(str(obj["spec"])),
            )
            for name, obj in self.objects.items()
        )


class Watched:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.ignored = IgnoredFields()
        self.requeued: list[float] = []
        self.watch = DriftWatch(
            cast(KubeClient, self.cluster),
            requeue=lambda _key, delay_s: self.requeued.append(delay_s),
            ignored=self.ignored,
        )

    def consider(
        self,
        service: RenderedService,
        live: tuple[LiveObject, ...] | None = None,
        *,
        last: LastRun | None = None,
        now: datetime = NOW,
    ) -> Considered:
        seen = self.cluster.cached() if live is None else live
        plan = make_plan(service, seen, last=last, known=KNOWN)
        return self.watch.consider(plan, service, seen, last=last, known=KNOWN, now=now)


def test_nothing_is_asked_while_all_is_ours() -> None:
    it, service = Watched(), rendered()
    it.cluster.make(service)
    assert it.consider(service).plan.action == "none"
    assert it.cluster.asked == 0


def test_an_edit_is_read_once_repaired_and_told() -> None:
    it, service = Watched(), rendered()
    it.cluster.make(service)
    it.cluster.edit("NodePort")
    for _ in range(2):
        found = it.consider(service)
        assert (found.plan.action, found.wait_s) == ("apply", 0.0)
    assert it.cluster.asked == 1, "the cache shows nothing new"
    assert found.rendered == service
    it.watch.submitted(found, now=NOW)
    told = "Repaired fields that other clients changed: Service chat: type ClusterIP -> NodePort by `kubectl-edit`"
    assert it.watch.settled(KEY) == told
    assert it.watch.settled(KEY) == ""
    # The cache does not show the repair yet, but the API server does.
    behind = it.cluster.cached()
    it.cluster.make(service)
    assert it.consider(service, behind).plan.action == "none"


def test_a_deleted_object_is_made_again_and_one_that_the_cache_misses_is_waited_for() -> None:
    it, service = Watched(), rendered()
    it.cluster.make(service)
    behind = tuple(each for each in it.cluster.cached() if each.name.kind != "Service")
    lagging = it.consider(service, behind)
    assert (lagging.plan.action, lagging.repair) == ("apply", ())
    del it.cluster.objects["Service", "chat"]
    found = it.consider(service)
    assert [str(each) for each in found.repair] == ["Service chat was deleted"]


def test_a_report_is_left_beside_a_repair() -> None:
    it = Watched()
    service = rendered()
    reporting = replace(service, objects=(replace(service.objects[0], on_drift="report"), service.objects[1]))
    it.cluster.make(service)
    it.cluster.edit("NodePort")
    assert it.consider(reporting).plan.action == "none"
    (problem,) = it.watch.problems(KEY, now=NOW)
    assert (problem.reason, problem.message) == (
        "DriftReported",
        "Service chat: type ClusterIP -> NodePort by `kubectl-edit`",
    )
    live = tuple(each for each in it.cluster.cached() if each.name.kind != "Deployment")
    del it.cluster.objects["Deployment", "chat"]
    found = it.consider(reporting, live, last=LastRun(service.fingerprint, ok=True))
    assert [str(each) for each in found.repair] == ["Deployment chat was deleted"]
    assert [each.ignore for each in found.rendered.objects] == [("spec.type",), ()]
    assert found.rendered.fingerprint == service.fingerprint
    it.watch.submitted(found, now=NOW)
    assert it.ignored.of(service.objects[0].manifest) == ("spec.type",)
    it.cluster.make(service)
    assert it.consider(reporting).plan.action == "none"
    assert it.watch.problems(KEY, now=NOW) == ()


def test_a_deleted_object_that_is_only_reported_stays_away_unless_it_is_the_last() -> None:
    it, service = Watched(), rendered(on_drift="report")
    it.cluster.make(service)
    del it.cluster.objects["Service", "chat"]
    assert it.consider(service).plan.action == "none"
    assert [each.message for each in it.watch.problems(KEY, now=NOW)] == ["Service chat was deleted"]
    del it.cluster.objects["Deployment", "chat"]
    found = it.consider(service, last=LastRun(service.fingerprint, ok=True))
    assert [each.kind for each in found.rendered.objects] == ["Deployment"]


def refused_autoscaler(**policy: Any) -> tuple[RenderedService, Watched]:
    """A service that was applied without its autoscaler."""
    plain, it = rendered(**policy), Watched()
    manifest = {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "chat", "namespace": "prod"}, "spec": {}}
    scaler = RenderedObject("hpa", naming.TYPE_AUTOSCALER, manifest)
    service = RenderedService.of(KEY, (plain.objects[0], scaler, plain.objects[1]))
    it.cluster.make(replace(service, objects=(service.objects[0], service.last_without_accessories)))
    return service, it


def test_drift_is_repaired_although_an_accessory_is_refused() -> None:
    service, it = refused_autoscaler()
    last = LastRun(service.fingerprint, ok=False)
    found = it.consider(service, last=last)
    assert (found.plan.action, found.plan.only_accessories, found.repair) == ("apply", True, ())
    it.cluster.edit("NodePort")
    found = it.consider(service, last=last)
    assert [each.kind for each in found.repair] == ["Service"]
    assert not found.plan.only_accessories, "it does not wait for the next try of the accessory"


def test_a_further_try_of_an_accessory_leaves_what_is_only_reported() -> None:
    service, it = refused_autoscaler(on_drift="report")
    it.cluster.edit("NodePort")
    found = it.consider(service)
    assert (found.plan.action, found.plan.only_accessories, found.repair) == ("apply", True, ())
    assert [each.ignore for each in found.rendered.objects] == [("spec.type",), (), ()]
    (problem,) = it.watch.problems(KEY, now=NOW)
    assert problem.reason == "DriftReported"
    del it.cluster.objects["Service", "chat"]
    found = it.consider(service)
    assert (found.plan.action, found.plan.only_accessories) == ("apply", True)
    assert [each.kind for each in found.rendered.objects] == ["HorizontalPodAutoscaler", "Deployment"]


def test_an_edit_of_the_service_is_applied_as_it_is() -> None:
    it, service = Watched(), rendered(on_drift="report")
    it.cluster.make(service)
    it.cluster.edit("NodePort")
    assert it.consider(service).plan.action == "none"
    edited = RenderedService.of(
        KEY, (service.objects[0], replace(service.objects[1], manifest={**service.objects[1].manifest, "spec": {}}))
    )
    found = it.consider(edited)
    assert (found.plan.action, found.rendered, found.repair) == ("apply", edited, ())
    assert it.watch.problems(KEY, now=NOW) == ()


def test_a_contest_is_named_and_waits() -> None:
    it, service = Watched(), rendered()
    for _ in range(FREE_REPAIRS):
        it.cluster.make(service)
        it.cluster.edit("NodePort", manager="rival")
        found = it.consider(service)
        assert found.wait_s == 0.0
        it.watch.submitted(found, now=NOW)
        it.watch.settled(KEY)
    assert it.consider(service).wait_s == BASE_S
    (problem,) = it.watch.problems(KEY, now=NOW)
    assert problem.reason == "DriftContested" and "by `rival`" in problem.message
    assert it.watch.problems(KEY, now=NOW + timedelta(seconds=it.requeued[-1])) == ()
    it.watch.drop_service(KEY)
    assert it.watch.problems(KEY, now=NOW) == ()
