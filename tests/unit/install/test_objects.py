"""The objects of an installation: the effect of each option, and the restrictions of the operator's pod."""

from __future__ import annotations

import pytest

from automation.install import identities, objects, operator
from automation.install.objects import documents, parts
from automation.install.options import InstallOptions
from automation.settings import SYSTEM_NAMESPACE, Settings
from kubeapi.json_types import Json
from program.desired.request_report import REPORTS_NAMESPACE

REMOTE = {"state": "s3://bucket", "passphrase_secret": "phrase"}


def one(options: InstallOptions, kind: str, name: str = "herdsman") -> Json:
    found = [d for d in documents(options) if d["kind"] == kind and d["metadata"]["name"] == name]
    assert len(found) == 1, [(d["kind"], d["metadata"]["name"]) for d in documents(options)]
    return found[0]


def pod(options: InstallOptions) -> Json:
    found: Json = one(options, "Deployment")["spec"]["template"]["spec"]
    return found


def environment(options: InstallOptions) -> Json:
    return {each["name"]: each.get("value") for each in pod(options)["containers"][0]["env"]}


def test_the_pod_is_restricted_as_the_strictest_pod_security_standard_asks() -> None:
    spec = pod(InstallOptions())
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "hostNetwork" not in spec and all("hostPath" not in volume for volume in spec["volumes"])
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_every_place_that_the_loop_writes_to_is_a_volume() -> None:
    mounted = {each["mountPath"] for each in pod(InstallOptions())["containers"][0]["volumeMounts"]}
    said = environment(InstallOptions())
    assert {said["HERDSMAN_WORK_DIR"], said["HOME"], said["HERDSMAN_STATE"].removeprefix("file://")} <= mounted


def test_the_environment_is_what_the_loop_reads() -> None:
    everything = InstallOptions(
        replicas=2,
        metrics_secret="m",
        policies="p",
        settings={"workers": "3"},
        **REMOTE,  # type: ignore[arg-type]
    )
    names = {f"HERDSMAN_{name.upper()}" for name in Settings.model_fields}
    asked = {name for name in environment(everything) if name.startswith("HERDSMAN_")}
    assert asked <= names and environment(everything)["HERDSMAN_WORKERS"] == "3"


def test_a_backend_takes_the_place_of_the_claim() -> None:
    claim = one(InstallOptions(state_claim_size="9Gi"), "PersistentVolumeClaim", operator.CLAIM)
    assert claim["spec"]["resources"] == {"requests": {"storage": "9Gi"}}
    for options in (
        InstallOptions(**REMOTE),  # type: ignore[arg-type]
        InstallOptions(state_secret="backend", passphrase_secret="phrase"),
    ):
        assert not [d for d in documents(options) if d["kind"] == "PersistentVolumeClaim"]
        assert "state" not in {volume["name"] for volume in pod(options)["volumes"]}
    [url] = [e for e in pod(options)["containers"][0]["env"] if e["name"] == "HERDSMAN_STATE"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "backend", "key": "url"}


def test_two_loops_have_a_budget_and_one_has_none() -> None:
    kinds = {d["kind"] for d in documents(InstallOptions())}
    assert "PodDisruptionBudget" not in kinds
    assert one(InstallOptions(replicas=2, **REMOTE), "PodDisruptionBudget")["spec"]["minAvailable"] == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("namespace", [SYSTEM_NAMESPACE, "elsewhere"])
def test_hosts_leases_are_in_the_system_namespace_wherever_the_operator_is(namespace: str) -> None:
    found = documents(InstallOptions(namespace=namespace))
    roles = {
        d["metadata"]["namespace"] for d in found if d["kind"] == "Role" and d["metadata"]["name"] == "herdsman-loop"
    }
    assert roles == {namespace, SYSTEM_NAMESPACE, REPORTS_NAMESPACE}
    bound = [d for d in found if d["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    assert {d["subjects"][0]["namespace"] for d in bound} == {namespace}
    assert {d["metadata"]["name"] for d in found if d["kind"] == "Namespace"} == roles


def test_names_are_unique_and_the_operator_is_last() -> None:
    found = documents(InstallOptions(namespace="elsewhere", replicas=2, **REMOTE))  # type: ignore[arg-type]
    names = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in found]
    assert len(names) == len(set(names)) and names[-1][0] == "Deployment"


def test_what_serving_needs_outlives_the_operator() -> None:
    """Without its PriorityClass a pod cannot be made again, and without its role an agent has no rights."""
    going = {part.kind for part in parts() if part.stage == "operator"}
    assert going.isdisjoint({"CustomResourceDefinition", "PriorityClass", "Namespace", "PersistentVolumeClaim"})
    agents = [part for part in parts() if part.tree["metadata"]["name"] == objects.AGENT_ROLE]
    assert {part.stage for part in agents} == {"kept"}


def test_agents_are_bound_to_their_hosts_unless_a_warning_is_asked_for() -> None:
    def actions(options: InstallOptions) -> list[Json]:
        return [d["spec"]["validationActions"] for d in documents(options) if d["kind"] == identities.BINDING]

    names = len(identities.names())
    assert actions(InstallOptions()) == [["Deny"]] * names
    assert actions(InstallOptions(host_identities="warn")) == [["Warn", "Audit"]] * names
    unserved = frozenset(kind.kind for kind in identities.KINDS)
    left = documents(InstallOptions(), unserved=unserved)
    assert not {d["kind"] for d in left} & unserved and len(left) == len(documents(InstallOptions())) - 2 * names


@pytest.mark.parametrize("dialects", [{}, {"kserve": True, "llmaz": True}])
def test_roles_for_people_are_bound_to_nobody_and_the_one_to_look_with_writes_nothing(dialects: Json) -> None:
    options = InstallOptions(**dialects)
    view, edit = (one(options, "ClusterRole", name)["rules"] for name in (objects.VIEW_ROLE, objects.EDIT_ROLE))
    assert {verb for rule in view for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert all(rule in edit for rule in view) and len(edit) > len(view)
    groups = {group for rule in view for group in rule["apiGroups"]}
    assert ("serving.kserve.io" in groups) == ("llmaz.io" in groups) == bool(dialects)
    assert not [rule for rule in edit for resource in rule["resources"] if "/" in resource or resource == "secrets"]
    bound = {d["roleRef"]["name"] for d in documents(options) if d["kind"].endswith("Binding") and "roleRef" in d}
    assert bound.isdisjoint({objects.VIEW_ROLE, objects.EDIT_ROLE, objects.PREVIEW_ROLE})
    stages = {part.tree["metadata"]["name"]: part.stage for part in parts()}
    assert {stages[name] for name in (objects.VIEW_ROLE, objects.EDIT_ROLE, objects.PREVIEW_ROLE)} == {"kept"}
