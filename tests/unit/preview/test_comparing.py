"""The preview of one object: which differences count as a change, and the input of its digest."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from automation.preview import comparing
from automation.reconcile.plan import ObjectName
from components.render import RenderOptions, render
from components.rendered import RenderedObject
from kubeapi.json_types import Json
from program.desired.service import Autoscaling
from tests.support.builders import service


def rendered(**fields: Any) -> tuple[RenderedObject, ...]:
    return render(service(**fields), RenderOptions(claim_exists=True)).objects


def deployment(**fields: Any) -> RenderedObject:
    return rendered(**fields)[-1]


def applied(each: RenderedObject, **metadata: Any) -> Json:
    """Return the live object right after the loop applied it."""
    manifest = copy.deepcopy(each.manifest)
    fields: Json = {}
    tree(manifest, fields)
    entry = {"manager": "herdsman", "operation": "Apply", "fieldsV1": fields}
    manifest["metadata"] |= {"uid": "uid-of-it", "resourceVersion": "7", "managedFields": [entry], **metadata}
    return manifest


def tree(value: Json, into: Json) -> None:
    """Write into `into` the ownership of all keys of objects; a list is owned as a whole."""
    for key, child in value.items():
        into[f"f:{key}"] = {}
        if isinstance(child, dict):
            tree(child, into[f"f:{key}"])


def test_our_own_notes_and_what_the_server_writes_are_no_change() -> None:
    each = deployment()
    live = applied(each)
    after = copy.deepcopy(live)
    after["metadata"]["annotations"]["herdsman.dev/applied-hash"] = "another"
    after["metadata"]["annotations"]["llmkube.ai/desired-template-hash"] = "another"
    after["metadata"] |= {"generation": 9, "resourceVersion": "8", "managedFields": []}
    after["status"] = {"replicas": 3}
    assert comparing.updated(each, live, after).op == "same"


def test_a_change_that_has_no_words_is_a_change_all_the_same() -> None:
    each = deployment()
    live, after = applied(each), applied(each)
    container = after["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    live["spec"]["template"]["spec"]["containers"][0]["env"] = list(reversed(container["env"]))
    change = comparing.updated(each, live, after)
    assert change.op == "update"
    assert change.fields == ("in another order",)
    assert comparing.pod_template_changes(live, after)


def test_the_digest_names_the_change_and_nothing_else() -> None:
    each = deployment(replicas=1)
    live, after = applied(each), applied(each)
    after["spec"]["replicas"] = 2
    digest = comparing.updated(each, live, after).digest
    elsewhere = {"metadata": {**live["metadata"], "resourceVersion": "99", "labels": {"of": "others"}}}
    both = {**after, "metadata": {**after["metadata"], "labels": {"of": "others"}}}
    assert comparing.updated(each, {**live, **elsewhere}, both).digest == digest
    live["spec"]["replicas"] = 3
    assert comparing.updated(each, live, after).digest != digest
    after["spec"]["replicas"] = 4
    assert comparing.updated(each, live, after).digest != digest


def test_the_digest_of_a_creation_does_not_hang_on_the_uid_of_its_owner() -> None:
    ours = service()
    other = ours.model_copy(update={"owner": replace(ours.owner, uid="later") if ours.owner else None})
    first, second = (render(each, RenderOptions(claim_exists=True)).objects for each in (ours, other))
    assert [comparing.created(each).digest for each in first] == [comparing.created(each).digest for each in second]
    assert comparing.created(first[0]).digest != comparing.created(first[1]).digest


def test_what_the_server_assigns_to_a_service_is_no_part_of_the_change() -> None:
    each = render(service(), RenderOptions()).objects[0]
    live, after = applied(each), applied(each)
    for obj, port in ((live, None), (after, 30517)):
        obj["spec"] |= {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}
        obj["spec"]["ports"] = [{**obj["spec"]["ports"][0], **({"nodePort": port} if port else {})}]
    assert comparing.updated(each, live, after).op == "same"
    after["spec"]["type"] = "NodePort"
    first = comparing.updated(each, live, after)
    after["spec"]["ports"][0]["nodePort"] = 31999
    assert comparing.updated(each, live, after) == first
    assert first.fields == ("type ClusterIP -> NodePort",)


def test_a_replacement_names_what_cannot_change_and_what_differs() -> None:
    each = deployment()
    live = applied(each)
    live["spec"]["selector"]["matchLabels"]["app"] = "older"
    live["spec"]["progressDeadlineSeconds"] = 600
    change = comparing.replaced(each, live, ["spec.selector"])
    assert change.fields == ("spec.selector cannot change in place", "selector.matchLabels.app older -> svc")


def test_what_was_applied_and_is_still_ours_needs_no_dry_run() -> None:
    made = render(service(), RenderOptions(claim_exists=True))
    live = {ObjectName(each.kind, each.name): applied(each) for each in made.objects}
    assert comparing.is_settled(made, live)
    assert not comparing.is_settled(render(service(), RenderOptions()), live), "the claim is missing"
    assert not comparing.is_settled(render(service(replicas=2), RenderOptions(claim_exists=True)), live)
    name = ObjectName("Deployment", "svc")
    taken = copy.deepcopy(live[name])
    taken["spec"]["replicas"] = 5
    del taken["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:replicas"]
    assert not comparing.is_settled(made, {**live, name: taken})
    assert not comparing.is_settled(made, {name: live[name]})
    going = applied(made.objects[0], deletionTimestamp="2026-01-01T00:00:00Z")
    assert not comparing.is_settled(made, {**live, ObjectName("Service", "svc"): going})


def test_a_service_without_a_refused_accessory_is_not_settled() -> None:
    made = render(service(autoscaling=Autoscaling(max_replicas=2)), RenderOptions(claim_exists=True))
    live = {ObjectName(each.kind, each.name): applied(each) for each in made.objects}
    assert comparing.is_settled(made, live)
    live[ObjectName("Deployment", "svc")] = applied(made.last_without_accessories)
    assert not comparing.is_settled(made, live)
    assert [each.kind for each in comparing.applied(made, live)] == ["Service", "Deployment"]


def test_a_refusal_keeps_the_digest_of_what_was_asked() -> None:
    each = deployment()
    assert comparing.rejected(each, None, "no").op == "create"
    change = comparing.rejected(each, applied(each), "no")
    assert (change.op, change.refused) == ("update", "no")
