"""The main and the prefill pods: a Deployment or a group, and their labels, accounts and number."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from tests.unit.dialects.kserve.combining import main, service
from tests.unit.dialects.kserve.parsing import account, annotated, made, mounted, named, pod, pods_of, variables

NAME, COMPONENT, ROLE = "app.kubernetes.io/name", "app.kubernetes.io/component", "llm-d.ai/role"
GROUP: Json = {"parallelism": {"data": 4, "dataLocal": 2}, "worker": {"containers": []}}


def access(cr: Json, part: str, *objects: Json) -> Any:
    return next((a for a in made(cr, *objects).access if a.part == part), None)


@pytest.mark.parametrize(
    ("spec", "part", "component", "role"),
    [
        ({}, "main", "llminferenceservice-workload", "both"),
        ({"prefill": {}}, "main", "llminferenceservice-workload", "decode"),
        ({"prefill": {}}, "prefill", "llminferenceservice-workload-prefill", "prefill"),
    ],
)
def test_pods_tell_their_part_in_requests(spec: Json, part: str, component: str, role: str) -> None:
    pods = pods_of(made(service(spec)), part)
    assert pods.selector == pods.template["metadata"]["labels"]
    assert (pods.selector[NAME], pods.selector[COMPONENT], pods.selector[ROLE]) == ("chat", component, role)


def test_what_users_label_pods_with_is_in_no_selector_and_takes_no_label_of_ours() -> None:
    labels = {"team": "ml", NAME: "other", ROLE: "prefill"}
    pods = made(service({"labels": labels})).main
    assert pods.template["metadata"]["labels"] == {**pods.selector, "team": "ml"}
    assert pods.selector[NAME] == "chat"


def test_a_group_has_the_labels_of_the_spec_on_itself_and_its_pods() -> None:
    labelled = {**GROUP, "labels": {"team": "ml", COMPONENT: "other"}}
    group = made(service(labelled)).main
    assert group.labels["team"] == "ml"
    assert group.labels[COMPONENT] == "llminferenceservice-workload-worker"
    assert group.group is not None and group.group.leader is not None
    for template in (group.group.leader, group.template):
        assert template["metadata"]["labels"]["team"] == "ml"


def test_a_group_has_labels_of_requests_on_its_leader_alone() -> None:
    group = made(service(GROUP)).main
    assert group.group is not None and group.group.leader is not None
    leader, worker = group.group.leader["metadata"]["labels"], group.template["metadata"]["labels"]
    assert leader[ROLE] == "both"
    assert leader["kserve.io/component"] == "workload"
    assert not {ROLE, "kserve.io/component"} & set(worker)
    assert group.labels[COMPONENT] == "llminferenceservice-workload-worker"


@pytest.mark.parametrize(
    ("parallelism", "size"),
    [
        ({"data": 4, "dataLocal": 1}, 4),
        ({"data": 10, "dataLocal": 2}, 5),
        ({"data": 2, "dataLocal": 2}, 1),
        ({"pipeline": 3}, 3),
    ],
)
def test_a_group_is_as_large_as_its_parallelism(parallelism: Json, size: int) -> None:
    group = made(service({"parallelism": parallelism, "worker": {"containers": []}})).main.group
    assert group is not None
    assert (group.size, group.sub_group_policy) == (size, None)


@pytest.mark.parametrize(
    ("given", "deployment", "group"),
    [
        (None, None, {"type": "RollingUpdate"}),
        ({}, None, {"type": "RollingUpdate"}),
        (
            {"maxSurge": 2},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2}},
            {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 2}},
        ),
        (
            {"maxUnavailable": "50%"},
            {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50%"}},
            {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": "50%", "maxSurge": 0}},
        ),
    ],
)
def test_a_rollout_is_as_the_user_says_and_else_kubernetes_own(
    given: Json | None, deployment: Json | None, group: Json
) -> None:
    rollout = {} if given is None else {"rolloutStrategy": given}
    assert made(service(rollout)).main.strategy == deployment
    of_group = made(service({**GROUP, **rollout})).main.group
    assert of_group is not None and of_group.rollout == group


@pytest.mark.parametrize(
    ("spec", "replicas"),
    [
        ({}, None),
        ({"replicas": 0}, 0),
        ({"replicas": 3}, 3),
        ({"scaling": {"maxReplicas": 4, "wva": {"hpa": {}}}}, None),
    ],
)
def test_the_number_of_pods_is_the_users_or_nobodys(spec: Json, replicas: int | None) -> None:
    assert made(service(spec)).main.replicas == replicas


def test_annotations_of_queues_networks_and_scrapes_are_passed_on_and_those_of_groups_to_groups() -> None:
    annotations = {
        "prometheus.io/port": "8000",
        "k8s.v1.cni.cncf.io/networks": "rdma",
        "leaderworkerset.sigs.k8s.io/exclusive-topology": "rack",
        "example.com/a": "1",
    }
    single = made(annotated(annotations)).main
    assert set(single.annotations) == {"prometheus.io/port", "k8s.v1.cni.cncf.io/networks"}
    assert single.template["metadata"]["annotations"] == single.annotations
    group = made(annotated(annotations, **GROUP)).main
    assert "leaderworkerset.sigs.k8s.io/exclusive-topology" in group.annotations


class TestAccounts:
    def test_pods_without_a_sidecar_run_as_the_namespaces_own(self) -> None:
        workloads = made(service())
        assert workloads.access == ()
        assert "serviceAccountName" not in pod(workloads.main)

    def test_a_routing_sidecar_may_look_for_pods_and_pools_and_no_more(self) -> None:
        cr = service({"prefill": {}})
        found = access(cr, "main")
        assert (found.service_account, found.role, found.binding) == (
            "chat-kserve",
            "chat-kserve-role",
            "chat-kserve-rb",
        )
        assert pod(made(cr).main)["serviceAccountName"] == "chat-kserve"
        assert {verb for rule in found.rules for verb in rule["verbs"]} == {"get", "list", "watch"}
        assert {resource for rule in found.rules for resource in rule["resources"]} == {"pods", "inferencepools"}
        assert not found.cluster_role

    def test_the_users_own_account_is_used_and_not_made(self) -> None:
        cr = service({"prefill": {}, "template": {"serviceAccountName": "mine", "containers": [{"name": "main"}]}})
        found = access(cr, "main")
        assert (found.service_account, found.account_exists, found.role) == ("mine", True, "chat-kserve-role")

    def test_groups_have_an_account_of_their_own(self) -> None:
        cr = service(GROUP)
        found = access(cr, "main")
        assert (found.service_account, found.role, found.rules) == ("chat-kserve-mn", "", ())
        group = made(cr).main
        assert group.group is not None and group.group.leader is not None
        assert group.group.leader["spec"]["serviceAccountName"] == pod(group)["serviceAccountName"] == "chat-kserve-mn"

    def test_prefill_groups_have_another(self) -> None:
        cr = service({"prefill": GROUP})
        assert access(cr, "prefill").service_account == "chat-kserve-mn-prefill"
        assert access(cr, "main").service_account == "chat-kserve"

    def test_an_account_that_is_made_can_pull_what_the_default_one_can(self) -> None:
        default = account("default", "keys", imagePullSecrets=[{"name": "registry"}])
        found = access(service({"prefill": {}}), "main", default)
        assert (found.image_pull_secrets, found.secrets) == (({"name": "registry"},), ({"name": "keys"},))


def test_the_sidecar_learns_its_pool_where_there_is_a_router() -> None:
    def told(spec: Json) -> Json | None:
        sidecar = named(pod(made(service({"prefill": {}, **spec})).main)["initContainers"], "llm-d-routing-sidecar")
        assert sidecar is not None
        return variables(sidecar).get("INFERENCE_POOL_NAME")

    assert told({}) is None
    assert (told({"router": {"scheduler": {}}}) or {})["value"] == "chat-inference-pool"
    assert (told({"router": {"scheduler": {"pool": {"ref": {"name": "p"}}}}}) or {})["value"] == "p"


class TestCacheTiers:
    TIERS: Json = {
        "cpu": "8Gi",
        "secondary": [
            {"fileSystem": {"emptyDir": {"size": "10Gi"}}},
            {"fileSystem": {"pvc": {"ref": {"name": "kv", "path": "/a/"}}}},
            {"fileSystem": {"pvc": {"spec": {"resources": {"requests": {"storage": "5Gi"}}}}}},
            {"fileSystem": {"emptyDir": {"size": "512Mi"}}},
        ],
    }

    def test_each_tier_is_a_volume_of_its_kind(self) -> None:
        spec = pod(made(service({"kvCacheOffloading": self.TIERS})).main)
        volumes = {v["name"]: v for v in spec["volumes"] if v["name"].startswith("kv-")}
        assert volumes["kv-cache-secondary-0"]["emptyDir"] == {"sizeLimit": "10Gi"}
        assert volumes["kv-cache-secondary-1"]["persistentVolumeClaim"] == {"claimName": "kv"}
        assert "volumeClaimTemplate" in volumes["kv-cache-secondary-2"]["ephemeral"]
        assert mounted(main(spec))["/mnt/kv-cache-1"]["subPath"] == "a"

    @pytest.mark.parametrize(("own", "asked"), [({}, 11274289152), ({"ephemeral-storage": "1Gi"}, 12348030976)])
    def test_nodes_are_asked_for_the_space(self, own: Json, asked: int) -> None:
        container = {"name": "main", "resources": {"requests": {"cpu": "1", **own}}}
        cr = service({"kvCacheOffloading": self.TIERS, "template": {"containers": [container]}})
        requests = main(pod(made(cr).main))["resources"]["requests"]
        assert requests == {"cpu": "1", "ephemeral-storage": str(asked)}

    def test_a_size_that_is_none_is_refused(self) -> None:
        tiers = {"cpu": "8Gi", "secondary": [{"fileSystem": {"emptyDir": {"size": "much"}}}]}
        with pytest.raises(SpecInvalid) as refused:
            made(service({"kvCacheOffloading": tiers}))
        assert refused.value.field.startswith("spec.kvCacheOffloading.secondary")


class TestTracing:
    def test_vllm_and_the_picker_trace_under_their_names(self) -> None:
        cr = service({"prefill": {}, "tracing": {}, "router": {"scheduler": {}}})
        workloads = made(cr)
        names = {
            part: variables(main(pod(pods_of(workloads, part))))["OTEL_SERVICE_NAME"]["value"]
            for part in ("main", "prefill", "scheduler")
        }
        assert names == {
            "main": "inference-server-decode",
            "prefill": "inference-server-prefill",
            "scheduler": "inference-scheduler",
        }
        assert main(pod(workloads.main))["args"][:2] == ["--otlp-traces-endpoint", "http://otel-collector:4317"]

    def test_what_the_user_says_stays(self) -> None:
        container = {
            "name": "main",
            "args": ["--otlp-traces-endpoint=http://mine:1"],
            "env": [{"name": "OTEL_SERVICE_NAME", "value": "mine"}],
        }
        found = main(pod(made(service({"tracing": {}, "template": {"containers": [container]}})).main))
        assert found["args"] == ["--otlp-traces-endpoint=http://mine:1", "--collect-detailed-traces", "all"]
        assert variables(found)["OTEL_SERVICE_NAME"]["value"] == "mine"


class TestDevices:
    PREFIX = "serving.kserve.io/exp-dra-"

    def test_each_pod_claims_devices_from_one_template(self) -> None:
        cr = annotated({f"{self.PREFIX}device-class": "gpu.example.com", f"{self.PREFIX}device-count": "2"}, prefill={})
        workloads = made(cr)
        [template] = workloads.claim_templates
        request = template.spec["spec"]["devices"]["requests"][0]["exactly"]
        assert request == {"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 2}
        for part in ("main", "prefill"):
            spec = pod(pods_of(workloads, part))
            assert spec["resourceClaims"][0]["resourceClaimTemplateName"] == template.name == "chat-managed-dra"
            assert main(spec)["resources"]["claims"] == [{"name": "managed-device"}]

    def test_a_container_that_is_not_there_cannot_claim(self) -> None:
        cr = annotated({f"{self.PREFIX}device-class": "g.example.com", f"{self.PREFIX}container-name": "absent"})
        with pytest.raises(SpecInvalid) as refused:
            made(cr)
        assert refused.value.field == f"metadata.annotations[{self.PREFIX}container-name]"


@pytest.mark.parametrize(
    ("spec", "field", "why"),
    [
        ({"template": {"nodeSelectr": {"a": "b"}}}, "spec.template.nodeSelectr", "did you mean `nodeSelector`?"),
        (
            {"template": {"containers": [{"name": "main", "resorces": {"limits": {"nvidia.com/gpu": "1"}}}]}},
            "spec.template.containers[0].resorces",
            "`resources`",
        ),
        (
            {
                "template": {
                    "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
                }
            },
            "spec.template.spec",
            "one level up",
        ),
        ({"prefill": {"template": {"volums": [{"name": "a"}]}}}, "spec.prefill.template.volums", "`volumes`"),
        (GROUP | {"worker": {"spec": {"containers": [{"name": "main"}]}}}, "spec.worker.spec", "one level up"),
    ],
)
def test_a_field_that_no_pod_has_is_named(spec: Json, field: str, why: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        made(service(spec))
    assert refused.value.field == field
    assert why in refused.value.why
