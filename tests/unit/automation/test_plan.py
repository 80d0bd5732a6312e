"""The plan of the loop, from values alone."""

from __future__ import annotations

from automation.reconcile.plan import LastRun, LiveObject, ObjectName, make_plan
from components import naming
from components.rendered import RenderedObject, RenderedService
from program.desired.keys import ServiceKey

KEY = ServiceKey("llmkube", "prod", "chat")


def rendered(*, autoscaler: bool = False, args: str = "a") -> RenderedService:
    objects = [_object("service", "Service", args)]
    if autoscaler:
        objects.append(_object("hpa", "HorizontalPodAutoscaler", args))
    objects.append(_object("deployment", "Deployment", args))
    return RenderedService.of(KEY, tuple(objects))


def _object(part: str, kind: str, args: str) -> RenderedObject:
    return RenderedObject(part, naming.TYPE_SERVICE, {"kind": kind, "metadata": {"name": "chat"}, "spec": args})


def live(service: RenderedService, *, without: str = "", with_hash: str | None = None) -> tuple[LiveObject, ...]:
    found = []
    for obj in service.objects:
        annotations = obj.manifest["metadata"].get("annotations", {})
        applied = annotations.get(naming.ANNOTATION_APPLIED_HASH, "")
        if applied and with_hash is not None:
            applied = with_hash
        if obj.kind != without:
            found.append(LiveObject(ObjectName(obj.kind, obj.name), f"uid-{obj.kind}", applied))
    return tuple(found)


def test_nothing_is_done_when_all_is_as_rendered() -> None:
    service = rendered()
    assert make_plan(service, live(service), last=None).action == "none"


def test_a_service_without_objects_is_applied() -> None:
    assert make_plan(rendered(), (), last=None).action == "apply"


def test_a_missing_object_is_applied_although_the_hash_is_right() -> None:
    service = rendered()
    plan = make_plan(service, live(service, without="Service"), last=None)
    assert plan.action == "apply"
    assert "Service" in plan.why


def test_a_cache_claim_that_is_missing_is_made_again() -> None:
    service = rendered()
    claim = RenderedObject("claim", naming.TYPE_CACHE, {"kind": "PersistentVolumeClaim", "metadata": {"name": "cache"}})
    plan = make_plan(RenderedService.of(KEY, rendered().objects, (claim,)), live(service), last=None)
    assert plan.action == "apply"
    assert "PersistentVolumeClaim cache" in plan.why


def test_another_hash_is_applied() -> None:
    assert make_plan(rendered(args="b"), live(rendered(args="a")), last=None).action == "apply"


def test_a_hash_that_was_wiped_is_applied() -> None:
    service = rendered()
    assert make_plan(service, live(service, with_hash=""), last=None).action == "apply"


def test_an_object_that_is_no_longer_wanted_is_the_engines_first() -> None:
    before, after = rendered(autoscaler=True), rendered()
    leftovers = live(before, with_hash=after.fingerprint)
    assert make_plan(after, leftovers, last=None).action == "apply"


def test_what_the_engine_left_over_is_swept() -> None:
    before, after = rendered(autoscaler=True), rendered()
    plan = make_plan(after, live(before, with_hash=after.fingerprint), last=LastRun(after.fingerprint, ok=True))
    assert plan.action == "sweep"
    assert [o.name.kind for o in plan.leftovers] == ["HorizontalPodAutoscaler"]


def test_nothing_is_swept_after_a_failed_run() -> None:
    before, after = rendered(autoscaler=True), rendered()
    plan = make_plan(after, live(before, with_hash=after.fingerprint), last=LastRun(after.fingerprint, ok=False))
    assert plan.action == "apply"


def test_a_service_that_is_placed_nowhere_has_nothing_to_apply() -> None:
    nowhere = RenderedService.of(KEY, ())
    assert make_plan(nowhere, (), last=None).action == "none"
    assert make_plan(nowhere, live(rendered()), last=None).action == "apply"


def test_the_hash_stands_on_the_last_object_only() -> None:
    *others, last = rendered(autoscaler=True).objects
    assert naming.ANNOTATION_APPLIED_HASH in last.manifest["metadata"]["annotations"]
    assert last.kind == "Deployment"
    assert all("annotations" not in o.manifest["metadata"] for o in others)


def test_nothing_is_missing_of_a_kind_that_no_cache_holds() -> None:
    service = rendered(autoscaler=True)
    there = live(service, without="HorizontalPodAutoscaler")
    assert make_plan(service, there, last=None).action == "apply"
    known = frozenset({"Service", "Deployment"})
    assert make_plan(service, there, last=None, known=known).action == "none"
    assert make_plan(service, live(service, without="Service"), last=None, known=known).action == "apply"


def test_a_refused_accessory_is_tried_again_and_known_as_the_only_thing_missing() -> None:
    service = rendered(autoscaler=True)
    whole, incomplete = service.fingerprint, service.incomplete_fingerprint
    never_made = live(service, without="HorizontalPodAutoscaler", with_hash=incomplete)
    for found in (never_made, live(service, with_hash=incomplete)):
        plan = make_plan(service, found, last=None)
        assert (plan.action, plan.only_accessories) == ("apply", True)
    deleted = make_plan(service, live(service, without="HorizontalPodAutoscaler", with_hash=whole), last=None)
    assert (deleted.action, deleted.only_accessories) == ("apply", True)
    for found in (
        live(service, without="Service", with_hash=incomplete),
        live(service, with_hash="of another version"),
    ):
        plan = make_plan(service, found, last=None)
        assert (plan.action, plan.only_accessories) == ("apply", False)
