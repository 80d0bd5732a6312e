"""The objects of external metrics in an installation, and the judgement of the cluster's APIService."""

from __future__ import annotations

from typing import Any, cast

import pytest

from automation.external_metrics.registration import API_SERVICE
from automation.install import metrics_api
from automation.install.objects import documents
from automation.install.operator import METRICS_API, METRICS_API_PORT
from automation.install.options import InstallOptions
from automation.settings import Settings
from kubeapi.client import KubeClient
from kubeapi.json_types import Json

ON = InstallOptions(external_metrics=True, namespace="ops")
KEDA = {"namespace": "keda", "name": "keda-operator-metrics-apiserver"}


def of_kind(kind: str, options: InstallOptions = ON) -> dict[str, Json]:
    return {d["metadata"]["name"]: d for d in documents(options) if d["kind"] == kind}


def api_service(service: Json | None, *, available: str = "True") -> Json:
    condition = {"type": "Available", "status": available, "reason": "FailedDiscoveryCheck", "message": "no route"}
    return {"spec": {"service": service}, "status": {"conditions": [condition]}}


def test_by_default_the_cluster_gets_no_server_of_metrics() -> None:
    assert not of_kind("APIService", InstallOptions()) and METRICS_API not in of_kind("Service", InstallOptions())


def test_the_api_server_reaches_the_leader_and_the_loop_has_the_rights_for_it() -> None:
    service = of_kind("Service")[METRICS_API]["spec"]
    assert "selector" not in service, "of two loops only the leader answers"
    referred = of_kind("APIService")[API_SERVICE]["spec"]["service"]
    assert referred == {"namespace": "ops", "name": METRICS_API, "port": service["ports"][0]["port"]}
    [container] = of_kind("Deployment")["herdsman"]["spec"]["template"]["spec"]["containers"]
    said = {each["name"]: each.get("value") for each in container["env"]}
    names = {"HERDSMAN_EXTERNAL_METRICS_PORT", "HERDSMAN_EXTERNAL_METRICS_SERVICE"}
    assert said["HERDSMAN_EXTERNAL_METRICS_PORT"] == str(METRICS_API_PORT)
    assert names <= {f"HERDSMAN_{name.upper()}" for name in Settings.model_fields}
    allowed = of_kind("NetworkPolicy")["herdsman"]["spec"]["ingress"][0]["ports"]
    assert {"port": METRICS_API_PORT, "protocol": "TCP"} in allowed
    rules = of_kind("ClusterRole")["herdsman-loop-external-metrics"]["rules"]
    assert [(r["resources"], r["verbs"], r.get("resourceNames")) for r in rules] == [
        (["apiservices"], ["get", "patch"], [API_SERVICE]),
        (["subjectaccessreviews"], ["create"], None),
    ]
    reader = of_kind("RoleBinding")["herdsman-loop-external-metrics"]
    assert (reader["metadata"]["namespace"], reader["roleRef"]["name"]) == (
        "kube-system",
        "extension-apiserver-authentication-reader",
    )


@pytest.mark.parametrize(
    ("found", "state", "says"),
    [
        (None, "missing", "is missing"),
        (api_service({"namespace": "ops", "name": METRICS_API}), "ok", "served by Service ops/"),
        (api_service({"namespace": "ops", "name": METRICS_API}, available="False"), "warning", "no route"),
        (api_service(KEDA), "warning", "keda/keda-operator-metrics-apiserver"),
        (api_service({"namespace": "other", "name": METRICS_API}), "warning", "another adapter"),
        (api_service(None), "warning", "the API server itself"),
    ],
)
def test_the_doctor_names_who_serves_external_metrics(found: Json | None, state: str, says: str) -> None:
    check = metrics_api.judge(found, "ops")
    assert check.state == state and says in check.detail


class Cluster:
    def __init__(self, found: Json | None) -> None:
        self._found = found
        self.patches: list[Any] = []

    def find(self, *_: object) -> Json | None:
        return self._found

    def patch(self, *arguments: Any, **_: Any) -> Json:
        self.patches.append(arguments[-1])
        return {}


def test_an_api_service_that_another_adapter_took_over_is_given_up() -> None:
    def released(service: Json) -> list[Any]:
        entries = [{"manager": metrics_api.MANAGER}, {"manager": "keda"}]
        metadata = {"resourceVersion": "3", "managedFields": entries}
        cluster = Cluster({**api_service(service), "metadata": metadata})
        metrics_api.release(cast(KubeClient, cluster), "ops")
        return cluster.patches

    assert released({"namespace": "ops", "name": METRICS_API}) == []
    [[_, kept]] = released(KEDA)
    assert kept["value"] == [{"manager": "keda"}]
    assert metrics_api.other_adapter(cast(KubeClient, Cluster(None)), "ops") == ""
    assert metrics_api.other_adapter(cast(KubeClient, Cluster(api_service(KEDA))), "ops") == "/".join(KEDA.values())
    metrics_api.release(cast(KubeClient, Cluster(None)), "ops")
