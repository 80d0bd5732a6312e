"""The objects of the gateway in an installation: none by default, restricted pods, and the ways to it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from automation.install import gateway, permissions
from automation.install.https_server import PORT
from automation.install.objects import documents
from automation.install.options import InstallOptions
from gateway.running import GRACE_S
from kubeapi.json_types import Json
from program.desired.request_report import REPORTS_NAMESPACE

ON = InstallOptions(gateway=True)


def of_gateway(options: InstallOptions) -> dict[str, Json]:
    """The gateway's objects by kind."""
    return {d["kind"]: d for d in documents(options) if d["metadata"]["name"] == gateway.GATEWAY}


def test_by_default_there_is_no_gateway() -> None:
    everything = documents(InstallOptions())
    assert "gateway" not in {word for d in everything for word in d["metadata"]["name"].split("-")}


def test_the_pod_is_restricted_and_mounts_only_its_certificate() -> None:
    spec = of_gateway(ON)["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [volume["secret"]["secretName"] for volume in spec["volumes"]] == ["herdsman-gateway-tls"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])


def test_a_pod_that_ends_has_time_for_the_answers_under_way() -> None:
    spec = of_gateway(ON)["Deployment"]["spec"]["template"]["spec"]
    [command] = [each["lifecycle"]["preStop"]["exec"]["command"] for each in spec["containers"]]
    assert spec["terminationGracePeriodSeconds"] > int(command[1]) + GRACE_S


def test_the_gateway_reads_and_writes_its_reports_only() -> None:
    made = [d for d in documents(ON) if d["metadata"]["name"] == gateway.GATEWAY]
    roles = {d["metadata"].get("namespace", ""): d for d in made if d["kind"] in ("Role", "ClusterRole")}
    assert set(roles) == {"", gateway.KEYS_NAMESPACE, REPORTS_NAMESPACE}
    assert roles.pop(REPORTS_NAMESPACE)["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "patch", "delete"]}
    ]
    for role in roles.values():
        assert {verb for rule in role["rules"] for verb in rule["verbs"]} == set(permissions.FOLLOW)
    assert "secrets" not in {resource for rule in roles[""]["rules"] for resource in rule["resources"]}
    bindings = [d for d in made if d["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    assert len(bindings) == 3
    account = {"kind": "ServiceAccount", "name": gateway.GATEWAY, "namespace": "herdsman-system"}
    assert all(binding["subjects"] == [account] for binding in bindings)


def test_the_secrets_of_engines_are_read_where_somebody_binds_the_role() -> None:
    found = documents(ON)
    [role] = [d for d in found if d["metadata"]["name"] == "herdsman-gateway-secrets"]
    assert role["rules"] == [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    assert "herdsman-gateway-secrets" not in {d["roleRef"]["name"] for d in found if "roleRef" in d}


def test_metrics_are_served_on_request_only() -> None:
    def ports(options: InstallOptions) -> set[int]:
        [rule] = of_gateway(options)["NetworkPolicy"]["spec"]["ingress"]
        return {port["port"] for port in rule["ports"]}

    assert ports(ON) == {PORT}
    shown = InstallOptions(gateway=True, gateway_metrics=True)
    assert ports(shown) == {PORT, gateway.METRICS_PORT}
    [container] = of_gateway(shown)["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "--metrics-listen=0.0.0.0:9090" in container["args"]


def test_an_autoscaler_decides_on_the_replicas() -> None:
    assert of_gateway(ON)["Deployment"]["spec"]["replicas"] == 2
    scaled = of_gateway(InstallOptions(gateway=True, gateway_max_replicas=5))
    assert "replicas" not in scaled["Deployment"]["spec"]
    spec = scaled["HorizontalPodAutoscaler"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)


def test_a_route_checks_the_certificate_of_the_gateway() -> None:
    public = of_gateway(InstallOptions(gateway=True, gateway_host="llm.example.org", gateway_parent="public"))
    assert public["HTTPRoute"]["spec"]["parentRefs"] == [{"name": "public"}]
    assert public["BackendTLSPolicy"]["spec"]["validation"] == {
        "hostname": "llm.example.org",
        "wellKnownCACertificates": "System",
    }
    assert "Ingress" not in public


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gateway_parent": "public"}, "gateway_host"),
        ({"gateway_ingress_class": "nginx"}, "gateway_host"),
        ({"gateway_max_replicas": 1}, "below gateway_replicas"),
        ({"gateway_tls_secret": ""}, "is empty"),
        ({"settings": {"gateway": "true"}}, "the installation sets"),
    ],
)
def test_what_makes_no_sense_is_named(given: Json, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        InstallOptions(gateway=True, **given)
