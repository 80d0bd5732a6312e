"""The last template that served: when it is restored, where it is found, and how long it stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from automation.serving.rollback import (
    Rollback,
    Template,
    rollout_failure,
    template_of,
    with_template,
    written_rollback,
)
from automation.serving.rollout import rendered_template_hash
from components import naming
from components.render import RenderOptions, render
from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from tests.support.builders import service
from tests.support.pod_proxy import PodProxy, Say, api_status
from tests.support.pods import pod as api_pod
from tests.support.pods import remembered

KEY = ServiceKey("llmkube", "ns", "svc")


def rendered(image: str = "new", **fields: Any) -> RenderedService:
    return render(service(image=image, **fields), RenderOptions())


NEW, OLD = rendered("new"), rendered("old")
NEW_HASH, OLD_HASH = rendered_template_hash(NEW), rendered_template_hash(OLD)


def replica_set(of: RenderedService, name: str) -> Json:
    """A ReplicaSet as the Deployment controller creates it: the hash in a label, defaults filled in."""
    made = next(o.manifest for o in of.objects if o.kind == "Deployment")
    template = made["spec"]["template"]
    metadata = {**template["metadata"], "labels": {**template["metadata"]["labels"], "pod-template-hash": name}}
    spec = {**template["spec"], "restartPolicy": "Always"}
    return {
        "metadata": {
            "name": f"svc-{name}",
            "annotations": made["metadata"]["annotations"],
            "labels": {"pod-template-hash": name},
        },
        "spec": {"template": {"metadata": {**metadata, "creationTimestamp": None}, "spec": spec}},
    }


def live(
    template_hash: str = NEW_HASH, *, updated: int = 1, ready: int = 1, replicas: int = 2, late: bool = False
) -> Json:
    return {
        "metadata": {"annotations": {naming.ANNOTATION_TEMPLATE_HASH: template_hash}},
        "spec": {"replicas": 1},
        "status": {"updatedReplicas": updated, "readyReplicas": ready, "replicas": replicas},
        "progress_deadline_exceeded": late,
    }


def crashing(name: str = "new", *, restarts: int = 3, template: str = "n") -> Json:
    made = remembered(
        name, healthy=False, restarts=restarts, waiting="CrashLoopBackOff", created="2026-01-02T00:00:00Z"
    )
    made["engine"]["template"] = template
    return made


def serving(name: str = "old", template: str = "o") -> Json:
    made = remembered(name)
    made["engine"]["template"] = template
    return made


def test_a_change_fails_by_its_deadline_or_by_pods_that_crash() -> None:
    assert "progress deadline" in rollout_failure(NEW_HASH, OLD_HASH, live(late=True), ())
    told = rollout_failure(NEW_HASH, OLD_HASH, live(), (serving(), crashing()), made="n")
    assert told == "pod new was restarted 3 times and does not become ready"


def test_what_is_no_failed_change_is_none() -> None:
    def why(desired_hash: str, served: str, deployment: Json | None, *pods: Json) -> str:
        return rollout_failure(desired_hash, served, deployment, pods, made="n")

    crash = (serving(), crashing())
    assert why(NEW_HASH, OLD_HASH, live(), serving(), crashing(restarts=2)) == ""
    assert why(NEW_HASH, OLD_HASH, None, *crash) == ""
    assert why(NEW_HASH, OLD_HASH, live(OLD_HASH, late=True), *crash) == "", "the change is not made yet"
    assert why(NEW_HASH, NEW_HASH, live(late=True), *crash) == "", "this template has served"
    assert why(NEW_HASH, "", live(late=True), *crash) == "", "nothing has ever served"
    assert why(NEW_HASH, OLD_HASH, live(updated=1, ready=1, replicas=1, late=True)) == ""
    assert why(NEW_HASH, OLD_HASH, live(), crashing("old", template="o"), serving("new", "n")) == ""
    assert rollout_failure(NEW_HASH, OLD_HASH, live(), crash) == "", "the template of the pod is unknown"


def test_the_template_of_a_replica_set_takes_the_place_of_the_new_one_and_nothing_else_changes() -> None:
    template = template_of([replica_set(NEW, "n"), replica_set(OLD, "o")], OLD_HASH)
    assert template is not None and template.hash == OLD_HASH
    made = with_template(rendered("new", replicas=4), template)
    deployment = made.objects[-1].manifest
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "old"
    assert deployment["spec"]["replicas"] == 4
    assert "pod-template-hash" not in deployment["spec"]["template"]["metadata"]["labels"]
    assert rendered_template_hash(made) == OLD_HASH
    assert deployment["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH] == made.fingerprint
    assert made.fingerprint not in (NEW.fingerprint, OLD.fingerprint)
    assert made.objects[:-1] == rendered("new", replicas=4).objects[:-1]


def test_substituting_twice_gives_the_same() -> None:
    template = Template(OLD_HASH, replica_set(OLD, "o")["spec"]["template"])
    assert with_template(NEW, template).fingerprint == with_template(NEW, template).fingerprint


def custom_resource(*, generation: int = 2, message: str = "", observed: int = 2, served: str = OLD_HASH) -> Json:
    condition = {"type": "RolledBack", "status": "True", "reason": "RolledBack", "observedGeneration": observed}
    conditions = [{**condition, "message": message}] if message else []
    return {
        "metadata": {"name": "svc", "namespace": "ns", "generation": generation},
        "status": {"servedTemplateHash": served, "conditions": conditions},
    }


@pytest.fixture
def proxy() -> Iterator[PodProxy]:
    with PodProxy() as running:
        running.other = lambda *_: Say(body={"items": [replica_set(OLD, "o"), replica_set(NEW, "n")]})
        yield running


def image(made: RenderedService) -> str:
    return str(made.objects[-1].manifest["spec"]["template"]["spec"]["containers"][0]["image"])


def test_a_rollback_begins_is_kept_and_ends_with_another_template(proxy: PodProxy) -> None:
    rollback = Rollback(proxy.client)
    failing = (serving(), crashing())
    made, facts = rollback.apply(KEY, custom_resource(), NEW, live(), failing, wanted=True)
    assert image(made) == "old" and facts.rolled_back is not None
    assert NEW_HASH in facts.rolled_back.message and OLD_HASH in facts.rolled_back.message
    # The restored template is applied and no pod crashes: it stays.
    again, later = rollback.apply(KEY, custom_resource(), NEW, live(OLD_HASH), (serving(),), wanted=True)
    assert again.fingerprint == made.fingerprint and later == facts
    assert len(proxy.others) == 2, "ReplicaSets are listed to find the culprit and the template, and no more"
    third = rendered("third")
    made, facts = rollback.apply(KEY, custom_resource(generation=3), third, live(OLD_HASH), (serving(),), wanted=True)
    assert made is third and facts.rolled_back is None


def test_the_next_loop_keeps_it_by_the_status(proxy: PodProxy) -> None:
    told = f"pod template {NEW_HASH} failed: x; template {OLD_HASH} runs again until the spec changes"
    made, facts = Rollback(proxy.client).apply(
        KEY, custom_resource(message=told), NEW, live(OLD_HASH), (serving(),), wanted=True
    )
    assert image(made) == "old" and facts.rolled_back is not None and facts.rolled_back.message == told
    assert written_rollback(custom_resource(message=told, generation=3), NEW_HASH) is None
    assert written_rollback(custom_resource(message=told), "another") is None


def test_without_the_wish_a_failure_is_only_told(proxy: PodProxy) -> None:
    made, facts = Rollback(proxy.client).apply(KEY, custom_resource(), NEW, live(late=True), (), wanted=False)
    assert made is NEW and facts.failed is not None and facts.rolled_back is None
    assert not proxy.others


def test_where_no_replica_set_has_the_template_any_more_it_is_said(proxy: PodProxy) -> None:
    proxy.other = lambda *_: Say(body={"items": [replica_set(NEW, "n")]})
    made, facts = Rollback(proxy.client).apply(KEY, custom_resource(), NEW, live(late=True), (), wanted=True)
    ending = f"; the loop cannot roll back to template {OLD_HASH}, because the ReplicaSet of that template was deleted"
    assert made is NEW and facts.failed is not None and facts.failed.message.endswith(f"deadline{ending}")
    # A loop that finds the rollback in the status repeats the cause.
    told = f"pod template {NEW_HASH} failed: x; template {OLD_HASH} runs again until the spec changes"
    made, facts = Rollback(proxy.client).apply(
        KEY, custom_resource(message=told), NEW, live(OLD_HASH), (serving(),), wanted=True
    )
    assert made is NEW and facts.failed is not None
    assert facts.failed.message == f"pod template {NEW_HASH} failed: x{ending}"


def test_a_loop_that_may_not_see_replica_sets_takes_nothing_back(proxy: PodProxy) -> None:
    proxy.other = lambda *_: api_status(403, "Forbidden", "cannot list replicasets")
    made, facts = Rollback(proxy.client).apply(KEY, custom_resource(), NEW, live(late=True), (), wanted=True)
    assert made is NEW and facts.failed is not None


def test_a_pod_remembers_the_template_that_it_was_made_from() -> None:
    assert remembered()["engine"]["template"] == api_pod()["metadata"]["labels"]["pod-template-hash"]
