"""Rendering of services that describe their pods: the objects, their order, namespaces, owners and names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components import naming, urns
from components.extensions import unsupported_by_cluster
from components.options import RenderOptions
from components.render import render
from components.rendered import RenderedObject
from kubeapi import kinds
from program.desired.errors import NotYet, SpecInvalid
from program.desired.service import DriftPolicy
from program.desired.workloads import Access, PodGroup, ScaleTarget, Workloads
from program.dialects.registry import DIALECTS
from tests.support.workloads import IMAGE, described, everything, group_set, hpa, keda, marks, pod_set

ALL = RenderOptions(installed=frozenset(kind.full_name for kind in kinds.OPTIONAL))
NOTHING = RenderOptions(installed=frozenset())


def by_part(
    workloads: Workloads | None = None, options: RenderOptions = ALL, **fields: Any
) -> dict[str, RenderedObject]:
    return {obj.part: obj for obj in render(described(workloads, **fields), options).objects}


def test_all_that_is_described_is_made_and_the_pods_that_serve_come_last() -> None:
    rendered = render(described(), ALL)
    assert [(obj.part, obj.kind, obj.name) for obj in rendered.objects] == [
        ("access/scheduler/account", "ServiceAccount", "svc-epp-sa"),
        ("access/scheduler/role", "Role", "svc-epp-role"),
        ("access/scheduler/binding", "RoleBinding", "svc-epp-rb"),
        ("access/scheduler/cluster-binding", "ClusterRoleBinding", "ns-svc-epp-auth-rb"),
        ("services/main", "Service", "svc-kserve-workload-svc"),
        ("services/scheduler", "Service", "svc-epp-service"),
        ("claims/svc-managed-dra", "ResourceClaimTemplate", "svc-managed-dra"),
        ("pool", "InferencePool", "svc-pool"),
        ("route", "HTTPRoute", "svc-kserve-route"),
        ("pods/prefill", "Deployment", "svc-kserve-prefill"),
        ("pods/scheduler", "Deployment", "svc-kserve-router-scheduler"),
        ("pods/main", "Deployment", "svc-kserve"),
    ]
    assert rendered.objects[-1].manifest["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH]
    marked = [naming.ANNOTATION_APPLIED_HASH in o.manifest["metadata"].get("annotations", {}) for o in rendered.objects]
    assert marked.count(True) == 1


def test_objects_are_owned_and_found_and_the_cluster_wide_one_has_neither_namespace_nor_owner() -> None:
    for obj in render(described(), ALL).objects:
        metadata = obj.manifest["metadata"]
        assert DIALECTS["kserve"].mark.service_of(metadata["labels"]) == "svc"
        if obj.kind == "ClusterRoleBinding":
            assert "namespace" not in metadata
            assert "ownerReferences" not in metadata
        else:
            assert metadata["namespace"] == "ns"
            assert [owner["uid"] for owner in metadata["ownerReferences"]] == ["uid-1"]


def test_every_object_has_a_logical_name_of_its_own_that_tells_the_service() -> None:
    rendered = render(described(), ALL)
    found = urns.own_urns(rendered, "stack")
    names = [urns.object_name(rendered.key, obj) for obj in rendered.objects]
    assert len(set(names)) == len(rendered.objects)
    assert {urns.service_of_urn(urn, "ns") for urn in found} == {rendered.key}
    components = {obj.part: obj.component for obj in rendered.objects}
    routing = {part for part, component in components.items() if component == naming.TYPE_ROUTING}
    assert routing == {
        *("pool", "route", "pods/scheduler", "services/scheduler"),
        *(f"access/scheduler/{part}" for part in ("account", "role", "binding", "cluster-binding")),
    }
    assert components["pods/main"] == components["services/main"] == naming.TYPE_SERVICE


def test_pods_are_as_described_without_what_kubernetes_would_not_keep() -> None:
    spec = by_part()["pods/main"].manifest["spec"]
    labels = {**marks("svc"), "app.kubernetes.io/component": "main"}
    assert spec["selector"] == {"matchLabels": labels}
    assert spec["replicas"] == 1
    assert spec["template"]["metadata"] == {"labels": labels}
    assert "terminationGracePeriodSeconds" not in spec["template"]["spec"]
    assert spec["template"]["spec"]["volumes"] == [{"name": "weights", "emptyDir": {}}], "empty, and meant"
    assert "strategy" not in spec
    assert "null" not in json.dumps([obj.manifest for obj in render(described(), ALL).objects])


def test_a_changed_template_has_another_hash_and_a_changed_number_the_same() -> None:
    def noted(**fields: Any) -> str:
        pods = pod_set(name="svc-kserve", of="svc", **fields)
        made = by_part(Workloads(pods=(pods,)))["pods/main"].manifest
        return str(made["metadata"]["annotations"][naming.ANNOTATION_TEMPLATE_HASH])

    other = pod_set(name="a", of="svc").template
    other = {**other, "spec": {**other["spec"], "containers": [{"name": "main", "image": "another"}]}}
    assert noted() == noted(replicas=3)
    assert noted() != noted(template=other)


@pytest.mark.parametrize("fields", [{"replicas": None}, {"scaler": hpa("svc-kserve-hpa")}])
def test_a_number_that_is_others_is_left_out(fields: dict[str, Any]) -> None:
    pods = pod_set(name="svc-kserve", of="svc", **fields)
    assert "replicas" not in by_part(Workloads(pods=(pods,)))["pods/main"].manifest["spec"]


def test_somebody_who_scales_the_serving_pods_keeps_that_number_and_no_other() -> None:
    made = by_part(options=ALL.model_copy(update={"scaled_elsewhere": True}))
    assert "replicas" not in made["pods/main"].manifest["spec"]
    assert made["pods/main"].manifest["metadata"]["annotations"][naming.ANNOTATION_ASKED_REPLICAS] == "1"
    assert made["pods/prefill"].manifest["spec"]["replicas"] == 1


def test_autoscalers_aim_at_their_pods_or_at_what_they_are_told() -> None:
    told = hpa("svc", "prefill").model_copy(
        update={"target": ScaleTarget(api_version="inference.llmaz.io/v1alpha1", kind="Playground", name="svc")}
    )
    made = by_part(
        Workloads(
            pods=(
                group_set(name="svc-mn", of="svc", replicas=None, scaler=keda("svc-keda")),
                pod_set("prefill", name="svc-prefill", of="svc", scaler=told),
            )
        )
    )
    assert made["scaler/main"].manifest["spec"]["scaleTargetRef"] == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "name": "svc-mn",
    }
    assert made["scaler/prefill"].manifest["spec"]["scaleTargetRef"]["kind"] == "Playground"
    assert made["pods/prefill"].manifest["spec"]["replicas"] == 1, "what scales the Playground leaves its pods to us"
    assert made["scaler/main"].component == naming.TYPE_AUTOSCALER
    assert made["scaler/main"].kind == "ScaledObject"


def test_a_group_is_a_leader_and_its_workers() -> None:
    made = by_part(Workloads(pods=(group_set(name="svc-mn", of="svc", size=3, replicas=2),)))["pods/main"].manifest
    assert made["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    spec = made["spec"]
    assert spec["replicas"] == 2
    assert spec["startupPolicy"] == "LeaderCreated"
    group = spec["leaderWorkerTemplate"]
    assert group["size"] == 3
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert group["leaderTemplate"]["spec"]["containers"][0]["args"] == ["serve", "--leader"]
    assert group["workerTemplate"]["spec"]["containers"][0]["image"] == IMAGE
    assert "selector" not in spec
    assert "rolloutStrategy" not in spec


def test_a_group_says_no_more_than_it_was_told() -> None:
    pods = pod_set(name="svc", of="svc", group=PodGroup(rollout={"type": "RollingUpdate", "x": None}))
    spec = by_part(Workloads(pods=(pods,)))["pods/main"].manifest["spec"]
    assert spec["rolloutStrategy"] == {"type": "RollingUpdate"}
    assert set(spec["leaderWorkerTemplate"]) == {"size", "workerTemplate"}


def test_without_leaderworkerset_a_group_waits_and_says_what_to_install() -> None:
    desired = described(Workloads(pods=(group_set(name="svc-mn", of="svc"),)))
    with pytest.raises(NotYet) as caught:
        render(desired, NOTHING)
    assert (caught.value.reason, caught.value.field) == ("NotInstalled", "spec.worker")
    assert "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet" in caught.value.why
    assert "install" in caught.value.why


def test_what_the_cluster_lacks_is_left_out_and_named() -> None:
    fields = {"pods": (pod_set(name="svc-kserve", of="svc", scaler=keda("svc-keda")),)}
    desired = described(everything("svc", **fields))
    assert {obj.kind for obj in render(desired, NOTHING).objects} == {
        *("ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding", "Service", "Deployment")
    }
    problems = unsupported_by_cluster(desired, NOTHING)
    assert [(one.reason, one.field) for one in problems] == [
        ("NotInstalled", "spec.router.route"),
        ("NotInstalled", "spec.router.scheduler"),
        ("NotInstalled", "spec"),
        ("NotInstalled", "spec.scaling.keda"),
    ]
    assert "ResourceClaimTemplate svc-managed-dra" in problems[2].message
    assert unsupported_by_cluster(desired, ALL) == ()


def test_where_no_cluster_can_be_asked_everything_is_rendered() -> None:
    pods = (group_set(name="svc-mn", of="svc", scaler=keda("svc-keda")),)
    desired = described(everything("svc", pods=pods))
    from_files = render(desired, RenderOptions())
    assert from_files.fingerprint == render(desired, ALL).fingerprint
    assert unsupported_by_cluster(desired, RenderOptions()) == ()


def test_a_suspended_service_has_nothing() -> None:
    assert render(described(suspended=True), ALL).objects == ()
    assert render(described(Workloads(pods=(group_set(name="a", of="svc"),)), suspended=True), NOTHING).objects == ()


def test_an_account_alone_needs_no_role() -> None:
    access = Access(part="main", service_account="svc-mn", image_pull_secrets=({"name": "pull"},))
    made = by_part(Workloads(pods=(pod_set(name="a", of="svc"),), access=(access,)))
    assert set(made) == {"access/main/account", "pods/main"}
    account = made["access/main/account"].manifest
    assert account["imagePullSecrets"] == [{"name": "pull"}]
    assert "secrets" not in account
    assert "labels" not in account["metadata"]


def test_an_account_of_the_users_gets_its_rights_and_is_not_made() -> None:
    (access,) = everything("svc").access
    own = access.model_copy(update={"service_account": "mine", "account_exists": True})
    made = by_part(everything("svc", access=(own,)))
    assert "access/scheduler/account" not in made
    subjects = [made[f"access/scheduler/{part}"].manifest["subjects"] for part in ("binding", "cluster-binding")]
    assert subjects == [[{"kind": "ServiceAccount", "name": "mine", "namespace": "ns"}]] * 2


def test_adoption_reaches_every_object() -> None:
    for obj in render(described(adopt=True), ALL).objects:
        assert obj.manifest["metadata"]["annotations"][naming.ANNOTATION_ADOPT] == "true"


def test_fields_are_left_to_others_but_for_the_marks() -> None:
    ignoring = DriftPolicy(ignored={"Deployment": ("spec.template.spec.containers[main].image",)})
    assert by_part(drift=ignoring)["pods/main"].ignore == ("spec.template.spec.containers[0].image",)
    forbidden = DriftPolicy(ignored={"Deployment": ("metadata.labels",)})
    with pytest.raises(SpecInvalid, match=r"metadata\.labels"):
        render(described(drift=forbidden), ALL)
