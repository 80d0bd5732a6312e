"""The violations that the built-in rules find, and the services that pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.policies.matching import comes_from, told_source, value_at
from components.policies.policy import Violation
from program.desired.model import Gpu, ModelSource, SourceKind
from program.desired.service import Autoscaling, DesiredService, HostPlacement, PodSettings, RequestScaling
from tests.support.builders import claim_model, file_model, http_model, repository_model, service
from tests.unit.policies.folders import check, document, policies

Found = Callable[..., tuple[Violation, ...]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """A function that checks a service against a policy."""

    def ask(desired: DesiredService | None = None, *, labels: dict[str, str] | None = None, **spec: Any) -> Any:
        return check(policies(tmp_path, p_yaml=document(**spec)), desired, labels=labels)

    return ask


@pytest.mark.parametrize(
    ("image", "prefix", "allowed"),
    [
        ("ghcr.io/org/x:1", "ghcr.io/org", True),
        ("ghcr.io/org/x:1", "ghcr.io/org/", True),
        ("ghcr.io/organisation/x", "ghcr.io/org", False),
        ("ghcr.io.evil.example/org/x", "ghcr.io", False),
        ("GHCR.io/org/x", "ghcr.io/org", True),
        ("org/x", "docker.io/org", True),
        ("index.docker.io/org/x", "docker.io/org", True),
        ("ubuntu", "docker.io/library", True),
        ("ubuntu:22.04", "docker.io/library/ubuntu", True),
        ("quay.io", "quay.io", False),
        ("localhost:5000/x", "localhost:5000", True),
        ("localhost:50001/x", "localhost:5000", False),
        ("ghcr.io/org/x@sha256:ab", "ghcr.io/org/x", True),
        ("ghcr.io/org/x-evil", "ghcr.io/org/x", False),
        ("org/x", "ghcr.io", False),
    ],
)
def test_an_image_lies_under_a_prefix_or_not(image: str, prefix: str, allowed: bool) -> None:
    assert comes_from(image, prefix) is allowed


def test_images_of_every_container_are_looked_at(found: Found) -> None:
    violations = found(service(image="evil.example/llama:1"), imageRegistries={"allowed": ["ghcr.io/ggml-org"]})
    start = "Deployment/spec.template.spec.initContainers"
    assert [v.field for v in violations] == [
        f"{start}[model-cache-prep].image",
        f"{start}[model-downloader].image",
        "spec.image",
    ]
    assert violations[-1].value == "evil.example/llama:1"
    assert "ghcr.io/ggml-org" in violations[-1].rule
    allowed = ["evil.example", "docker.io/curlimages"]
    assert found(service(image="evil.example/llama:1"), imageRegistries={"allowed": allowed}) == ()


def test_bounds_of_resources(found: Found) -> None:
    asking = service(pod=PodSettings(cpu_request="9", memory_request="80Gi"), gpu=Gpu(count=4), replicas=5)
    rule = {"cpu": {"max": "8"}, "memory": {"max": "64Gi"}, "gpu": {"max": 2}, "replicas": {"max": 3}}
    violations = found(asking, resources=rule)
    assert {(v.field, v.value) for v in violations} == {
        ("Deployment/spec.template.spec: cpu", "9"),
        ("Deployment/spec.template.spec: memory", "80Gi"),
        ("spec.resources.gpu", "4"),
        ("spec.replicas", "5"),
    }
    assert all(v.fix for v in violations)
    assert found(service(pod=PodSettings(cpu_request="8000m", memory_request="64Gi")), resources=rule) == ()


def test_at_least_so_much(found: Found) -> None:
    violations = found(service(pod=PodSettings(cpu_request="500m")), resources={"cpu": {"min": 1}, "gpu": {"min": 1}})
    assert {(v.value, v.rule) for v in violations} == {
        ("500m", "one pod must request at least 1 cpu"),
        ("0", "at least 1 GPUs of one replica"),
    }


def test_what_must_be_asked_for(found: Found) -> None:
    (violation,) = found(service(pod=PodSettings(cpu_request="1")), resources={"required": ["cpu", "memory"]})
    assert violation.field.endswith("containers[llama-server].resources.requests.memory")
    assert violation.fix == "set spec.resources.memory"


def test_an_autoscaler_counts_with_its_maximum(found: Found) -> None:
    scaled = service(replicas=1, autoscaling=Autoscaling(min_replicas=1, max_replicas=9))
    (violation,) = found(scaled, resources={"replicas": {"max": 3}})
    assert (violation.field, violation.value) == ("spec.autoscaling.maxReplicas", "9")


def test_a_service_that_is_scaled_by_requests_counts_with_its_bounds(found: Found) -> None:
    asleep = service(replicas=0, by_requests=RequestScaling(min_replicas=2, max_replicas=9, target=4))
    (violation,) = found(asleep, resources={"replicas": {"min": 2, "max": 3}})
    assert (violation.field, violation.value) == ("replicas by requests: maximum", "9")


@pytest.mark.parametrize(
    ("model", "rule", "value"),
    [
        (http_model(), {"schemes": ["hf"]}, "https://example.com/model.gguf"),
        (http_model(), {"hosts": ["*.example.org"]}, "https://example.com/model.gguf"),
        (http_model(), {"patterns": ["https://example.com/approved/*"]}, "https://example.com/model.gguf"),
        (file_model(), {"schemes": ["https"]}, "file:///srv/models/m.gguf"),
        (repository_model(), {"schemes": ["https"]}, "org/repo"),
        (repository_model(), {"patterns": ["other/*"]}, "org/repo"),
        (http_model(), {"requireSha256": True}, "not set"),
    ],
)
def test_sources_that_are_not_allowed(found: Found, model: Any, rule: dict[str, Any], value: str) -> None:
    (violation,) = found(service(model=model), sources=rule)
    assert violation.value == value
    assert violation.field.startswith("Model/base spec.s")


def test_sources_that_are(found: Found) -> None:
    assert found(sources={"schemes": ["https"], "hosts": ["*.com"], "patterns": ["https://*"]}) == ()
    assert found(service(model=http_model(sha256="ab")), sources={"requireSha256": True}) == ()
    assert found(service(model=claim_model()), sources={"schemes": ["pvc"], "hosts": ["nowhere"]}) == ()


def test_a_draft_model_is_a_model_too(found: Found) -> None:
    drafting = service(draft=file_model(name="draft"))
    (violation,) = found(drafting, sources={"schemes": ["https"]})
    assert violation.field == "Model/draft spec.source"


def test_the_address_of_the_file_itself_counts(found: Found) -> None:
    source = ModelSource(
        kind=SourceKind.HTTP, address="https://allowed.example/page", url="https://elsewhere.example/f", path="f"
    )
    (violation,) = found(service(model=http_model(source=source)), sources={"hosts": ["allowed.example"]})
    assert "elsewhere.example" in violation.fix


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example\\@allowed.example/x.gguf",
        "https://allowed.example\\@evil.example/x.gguf",
        "https://evil.example\t.allowed.example/x.gguf",
        "https://me:pw@allowed.example/x.gguf",
    ],
)
def test_an_address_with_two_readings_is_on_no_host(found: Found, address: str) -> None:
    source = ModelSource(kind=SourceKind.HTTP, address=address, path="x.gguf")
    (violation,) = found(service(model=http_model(source=source)), sources={"hosts": ["*allowed.example"]})
    assert "allowed.example" in violation.rule
    assert "pw" not in violation.value


def test_where_services_may_be(found: Found) -> None:
    (violation,) = found(namespaces={"allowed": ["team-*"]})
    assert (violation.field, violation.value) == ("metadata.namespace", "ns")
    (violation,) = found(namespaces={"priorityClasses": ["llmkube-low"]})
    assert (violation.field, violation.value) == ("spec.priority", "llmkube-normal")
    assert found(namespaces={"allowed": ["n*"], "priorityClasses": ["llmkube-normal"]}) == ()


def test_hosts_that_a_service_may_run_on(found: Found) -> None:
    on_host = service(host_placement=HostPlacement(host="studio", pinned=True))
    (violation,) = found(on_host, hosts={"allowed": ["lab-*"]})
    assert (violation.field, violation.value) == ("metadata.annotations[herdsman.dev/host]", "studio")
    assert found(on_host, hosts={"allowed": ["stud*"]}) == ()
    (violation,) = found(on_host, hosts={"allowed": []})
    assert "services must not run on hosts" in violation.rule
    assert found(hosts={"allowed": []}) == ()


def test_what_pods_may_do(found: Found) -> None:
    context = {"privileged": True, "allowPrivilegeEscalation": True, "capabilities": {"add": ["SYS_ADMIN"]}}
    volumes = ({"name": "etc", "hostPath": {"path": "/etc"}},)
    pod = PodSettings(security_context=context, pod_security_context={"runAsUser": 0}, extra_volumes=volumes)
    rule = {
        "forbidPrivileged": True,
        "forbidHostPath": True,
        "forbidHostNetwork": True,
        "requireRunAsNonRoot": True,
        "forbidAddedCapabilities": True,
    }
    found_in = {(v.field.rpartition(".")[2], v.value) for v in found(service(pod=pod), pods=rule)}
    assert found_in >= {
        ("privileged", "true"),
        ("allowPrivilegeEscalation", "true"),
        ("add", "SYS_ADMIN"),
        ("hostPath", "/etc"),
        ("runAsUser", "0"),
    }
    modest = PodSettings(pod_security_context={"runAsNonRoot": True, "runAsUser": 1000})
    assert found(service(pod=modest), pods=rule) == ()


def test_a_container_may_not_undo_what_the_pod_says(found: Found) -> None:
    pod = PodSettings(security_context={"runAsUser": 0}, pod_security_context={"runAsNonRoot": True})
    violations = found(service(pod=pod), pods={"requireRunAsNonRoot": True})
    assert any(v.field.endswith("runAsUser") and v.value == "0" for v in violations)


@pytest.mark.parametrize(
    ("match", "labels", "concerned"),
    [
        ({}, {}, True),
        ({"namespaces": ["n*"]}, {}, True),
        ({"namespaces": ["team-*"]}, {}, False),
        ({"names": ["svc"]}, {}, True),
        ({"names": ["other"]}, {}, False),
        ({"namespaceLabels": {"tier": "prod"}}, {"tier": "prod"}, True),
        ({"namespaceLabels": {"tier": "prod"}}, {"tier": "dev"}, False),
        ({"namespaceLabels": {"tier": "prod"}}, {}, False),
        ({"namespaces": ["ns"], "names": ["other"]}, {}, False),
    ],
)
def test_which_services_a_policy_is_about(
    found: Found, match: dict[str, Any], labels: dict[str, str], concerned: bool
) -> None:
    violations = found(labels=labels, match=match, namespaces={"allowed": ["nowhere"]})
    assert bool(violations) is concerned


def test_mandatory_violations_come_first(tmp_path: Path) -> None:
    rule = {"namespaces": {"allowed": ["nowhere"]}}
    given = policies(tmp_path, a_yaml=document("a", enforcement="advisory", **rule), b_yaml=document("b", **rule))
    assert [(v.policy, v.mandatory) for v in check(given)] == [("b", True), ("a", False)]
    assert str(check(given)[0]) == (
        "policy `b`: metadata.namespace is ns: services must be in namespaces nowhere; create the service in one of "
        "these namespaces"
    )


def test_values_are_told_without_secrets() -> None:
    assert told_source("https://me:pw@example.com/f?token=x#y") == "https://example.com/f"
    cr = {"spec": {"env": [{"name": "A", "value": "pw"}], "list": [{"a": 1}], "x": {"y": "z"}}}
    assert value_at(cr, "spec.env[0].value") == "not shown"
    assert value_at(cr, "spec.list[0].a") == "1"
    assert value_at(cr, "spec.x.y") == "z"
    assert value_at(cr, "spec.x") == "an object"
    assert value_at(cr, "spec.none.deeper[3]") == "not set"
    assert value_at({"metadata": {"labels": {"a.b/c": "d"}}}, "metadata.labels[a.b/c]") == "d"


def test_a_built_in_rule_that_fails_counts_as_violated(found: Found) -> None:
    odd = service(pod=PodSettings(cpu_request="much"))
    (violation,) = found(odd, resources={"cpu": {"max": 1}})
    assert violation.mandatory
    assert violation.failed
    assert "`much`" in violation.value
