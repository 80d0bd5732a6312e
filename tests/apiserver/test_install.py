"""`herdsman install` and `uninstall` on a real API server, with the real engine: created, changed and kept objects.

The tests use one cluster in order, as a user would: preview, install, repeat, change, lose the state, uninstall,
install again, remove everything.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from automation.cli.main import invoke
from automation.external_metrics.registration import API_SERVICE
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_documents
from tests.support import peer_crds
from tests.support.controlplane import tool_or_skip
from tests.support.loop import eventually, find, model, service
from tools.localcluster import LocalCluster

NAMESPACE = "herdsman-system"
ROLES = kinds.Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False)
ACCOUNTS = kinds.Kind("v1", "ServiceAccount", "serviceaccounts", True)
GATEWAYS = (
    kinds.DEPLOYMENTS,
    kinds.SERVICES,
    kinds.NETWORK_POLICIES,
    kinds.DISRUPTION_BUDGETS,
    kinds.INGRESSES,
    ROLES,
    ACCOUNTS,
)
"""The kinds of the gateway's objects, without Gateway API."""
CONSOLES = (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.NETWORK_POLICIES, kinds.INGRESSES, ACCOUNTS)
REMOTE = ("--replicas=2", "--state=s3://bucket", "--passphrase-secret=phrase")


class Site:
    """A cluster and the command line of its administrator."""

    def __init__(self, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        self.kubeconfig = cluster.kubeconfig
        self._kubeconfig = f"--kubeconfig={cluster.kubeconfig}"
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = invoke([*arguments, self._kubeconfig])
        out, err = self._capsys.readouterr()
        return code, out + err

    def rows(self, *arguments: str) -> list[Json]:
        code, out = self.run(*arguments, "-o", "json")
        assert code in (0, 2), out
        found: list[Json] = json.loads(out)
        return found

    def find(self, kind: kinds.Kind, name: str = "herdsman", namespace: str | None = NAMESPACE) -> Json | None:
        return find(self.client, kind, namespace if kind.namespaced else None, name)  # type: ignore[arg-type]

    def deployment(self) -> Json:
        found = self.find(kinds.DEPLOYMENTS)
        assert found is not None
        return found

    def versions(self) -> dict[str, str]:
        """Return the versions of all objects of the installation. If they are equal later, no object was written."""
        versions = {}
        for kind in (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.CLAIMS, kinds.NETWORK_POLICIES, kinds.DISRUPTION_BUDGETS):
            for obj in self.client.list(kind, NAMESPACE)["items"]:
                # The controller's writes to the Deployment's status change its resourceVersion, not its generation.
                version = "generation" if kind is kinds.DEPLOYMENTS else "resourceVersion"
                versions[f"{kind.kind}/{obj['metadata']['name']}"] = str(obj["metadata"][version])
        for kind in (ROLES, kinds.CRDS, kinds.PRIORITY_CLASSES):
            for obj in self.client.list(kind, label_selector="app.kubernetes.io/part-of=herdsman")["items"]:
                versions[f"{kind.kind}/{obj['metadata']['name']}"] = str(
                    obj["metadata"]["generation" if kind is kinds.CRDS else "resourceVersion"]
                )
        return versions


@pytest.fixture
def site(
    fresh_control_plane: Callable[..., LocalCluster],
    pulumi_cli: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Site]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Site(fresh_control_plane(), capsys)
    yield found
    found.client.close()


@pytest.mark.soak
@pytest.mark.parametrize("dialect", ["kserve", "llmaz"])
def test_an_installation_beside_a_peer_names_its_class_and_has_the_rights(site: Site, dialect: str) -> None:
    option = {"kserve": "--kserve", "llmaz": "--llmaz"}[dialect]
    assert site.rows("install", option, "--set", "controller_class=herdsman")
    [container] = site.deployment()["spec"]["template"]["spec"]["containers"]
    assert {"name": "HERDSMAN_CONTROLLER_CLASS", "value": "herdsman"} in container["env"]
    assert site.find(ROLES, f"herdsman-loop-{dialect}") is not None
    assert {row["kind"] for row in site.rows("install", option)} == {"Deployment"}, "the class is no longer set"
    assert "--memory" not in site.run("install", option, "--memory", "1Gi")[1]
    [container] = site.deployment()["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "1Gi"


@pytest.mark.soak
def test_a_cluster_is_installed_into_changed_and_left(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = site.client

    # A preview writes nothing and lists every object as new.
    rows = site.rows("install", "--dry-run")
    assert {row["op"] for row in rows} == {"create"} and not any(row["refused"] for row in rows)
    assert site.run("install", "--dry-run")[0] == 2
    assert site.find(kinds.NAMESPACES, NAMESPACE) is None

    # After the installation all objects exist, and a second run changes nothing.
    made = site.rows("install", "--image=registry.example/herdsman:1")
    assert len(made) == len(rows) and {row["op"] for row in made} == {"create"}
    assert site.deployment()["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/herdsman:1"
    for document in crd_documents():
        assert site.find(kinds.CRDS, document["metadata"]["name"]) is not None
    before = site.versions()
    assert site.rows("install", "--dry-run", "--image=registry.example/herdsman:1") == []
    assert site.run("install", "--dry-run", "--image=registry.example/herdsman:1")[0] == 0
    assert "Nothing to change" in site.run("install", "--image=registry.example/herdsman:1")[1]
    assert site.versions() == before

    # An upgrade changes the Deployment and nothing else.
    [changed] = site.rows("install", "--image=registry.example/herdsman:2")
    assert (changed["op"], changed["kind"], changed["name"]) == ("update", "Deployment", "herdsman")
    after = site.versions()
    assert {name for name in after if after[name] != before[name]} == {"Deployment/herdsman"}

    # Two replicas get a PodDisruptionBudget. The existing claim stays, wherever the state is stored now.
    site.rows("install", *REMOTE)
    assert site.find(kinds.DISRUPTION_BUDGETS) and site.deployment()["spec"]["replicas"] == 2
    assert site.find(kinds.CLAIMS, "herdsman-state")

    # Another machine has no state: the objects of the installation are found by name, and superfluous ones are deleted.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    uid = site.deployment()["metadata"]["uid"]
    rows = site.rows("install", "--dry-run")
    assert ("delete", "PodDisruptionBudget") in {(row["op"], row["kind"]) for row in rows}
    site.rows("install")
    assert site.find(kinds.DISRUPTION_BUDGETS) is None
    assert site.deployment()["metadata"]["uid"] == uid

    # A manual change is reverted.
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}
    client.patch(
        ROLES,
        None,
        "herdsman-loop",
        [{"op": "add", "path": "/rules/-", "value": rule}],
        content_type="application/json-patch+json",
    )
    assert site.rows("install")
    role = site.find(ROLES, "herdsman-loop")
    assert role is not None and rule not in role["rules"]

    # A second operator is refused, and the message names the command that removes the first.
    code, said = site.run("install", "--namespace=elsewhere")
    assert code == 1 and "herdsman uninstall --namespace herdsman-system" in said
    assert site.find(kinds.NAMESPACES, "elsewhere") is None

    # `uninstall` deletes the operator, and keeps models, services, classes, CRDs, agents' rights and the claim.
    model(client, "default")
    service(client, "default")
    assert site.run("uninstall", "--yes")[0] == 0
    assert site.find(kinds.DEPLOYMENTS) is None and site.find(ROLES, "herdsman-loop") is None
    assert site.find(ACCOUNTS) is None and site.find(kinds.NETWORK_POLICIES) is None
    assert site.find(kinds.INFERENCE_SERVICES, "svc", "default") and site.find(kinds.MODELS, "base", "default")
    assert site.find(ROLES, "herdsman-agent") and site.find(kinds.PRIORITY_CLASSES, "llmkube-normal")
    assert site.find(kinds.CLAIMS, "herdsman-state") and site.find(kinds.NAMESPACES, NAMESPACE)
    assert "Nothing to change" in site.run("uninstall", "--yes")[1]

    # Removing everything needs the exact number of objects. It also deletes orphans: objects of a service whose CRD was
    # deleted earlier.
    site.rows("install")
    owner = {"apiVersion": kinds.MODELS.api_version, "kind": "InferenceService", "name": "lost", "uid": "0"}
    labels = {naming.LABEL_SERVICE: "lost"}
    orphan = {
        "metadata": {"name": "lost", "labels": labels, "ownerReferences": [owner]},
        "spec": {"ports": [{"port": 1}]},
    }
    client.create(kinds.SERVICES, "default", {"apiVersion": "v1", "kind": "Service", **orphan})
    code, said = site.run("uninstall", "--yes", "--crds", "--confirm-objects=7")
    assert code == 64 and "would delete 2 objects (1 InferenceService, 1 Model)" in said
    assert site.find(kinds.DEPLOYMENTS) and site.find(kinds.INFERENCE_SERVICES, "svc", "default")
    code, said = site.run("uninstall", "--yes", "--crds", "--confirm-objects=2")
    assert code == 0, said
    assert site.find(kinds.SERVICES, "lost", "default") is None
    for document in crd_documents():
        name = document["metadata"]["name"]
        eventually(lambda name=name: site.find(kinds.CRDS, name) is None, what=f"{name} to be gone")  # type: ignore[misc]


@pytest.mark.soak
def test_the_gateway_comes_and_goes_and_the_keys_of_its_clients_stay(site: Site) -> None:
    """The real API server accepts each object of the gateway, those of Gateway API by their own CRDs."""
    options = ("--gateway", "--gateway-host=llm.example.org", "--gateway-ingress-class=nginx")
    console = ("--console", "--console-host=console.example.org", "--console-ingress-class=nginx")
    routed = ("--gateway-parent=public", "--gateway-parent-namespace=gateways", "--gateway-max-replicas=4")
    with peer_crds.installed(site.client, (kinds.HTTP_ROUTES, peer_crds.BACKEND_TLS_POLICIES)):
        site.rows("install", *options, *routed, "--gateway-ca-configmap=authority")
        for kind in (*GATEWAYS, peer_crds.BACKEND_TLS_POLICIES, kinds.HTTP_ROUTES):
            assert site.find(kind, "herdsman-gateway") is not None, kind
        assert site.run("install", "--dry-run", *options, *routed, "--gateway-ca-configmap=authority")[0] == 0
        # Another end of the gateway's TLS, and a fixed number of replicas.
        site.rows("install", *options, *console)
        for kind in CONSOLES:
            assert site.find(kind, "herdsman-console") is not None, kind
        assert site.find(kinds.HTTP_ROUTES, "herdsman-gateway") is None
        assert site.find(kinds.AUTOSCALERS, "herdsman-gateway") is None
        deployment = site.find(kinds.DEPLOYMENTS, "herdsman-gateway")
        assert deployment is not None and deployment["spec"]["replicas"] == 2

    key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}}
    site.client.create(kinds.SECRETS, "herdsman-keys", key)
    site.rows("install")
    for kind in GATEWAYS:
        assert site.find(kind, "herdsman-gateway") is None, kind
    for kind in CONSOLES:
        assert site.find(kind, "herdsman-console") is None, kind
    assert site.find(kinds.SECRETS, "key", "herdsman-keys") is not None


@pytest.mark.soak
def test_the_metrics_api_comes_and_goes_and_another_adapters_stays(site: Site) -> None:
    def found() -> Json | None:
        return find(site.client, kinds.API_SERVICES, None, API_SERVICE)

    site.rows("install", "--gateway", "--external-metrics", "--image=example/herdsman:1")
    live = found()
    assert live is not None and live["spec"]["service"]["namespace"] == NAMESPACE
    assert site.run("install", "--preview", "--gateway", "--external-metrics", "--image=example/herdsman:1")[0] == 0
    site.rows("install")
    assert found() is None and site.find(kinds.SERVICES, "herdsman-external-metrics") is None

    site.rows("install", "--external-metrics")
    live = found()
    assert live is not None

    def rights() -> str:
        out = json.loads(site.run("doctor", "-o", "json")[1])
        return next(str(each["detail"]) for each in out if each["check"] == "permissions for external metrics")

    eventually(lambda: f"({NAMESPACE}/herdsman): 4 checked" in rights(), what="the role", timeout_s=60)
    site.client.delete(kinds.CLUSTER_ROLE_BINDINGS, None, "herdsman-loop-external-metrics")
    lacks = "may not get/patch apiservices.apiregistration.k8s.io, create subjectaccessreviews.authorization.k8s.io"
    eventually(lambda: lacks in rights(), what="the missing role", timeout_s=60)
    spec = {**live["spec"], "service": {"namespace": "keda", "name": "keda-operator-metrics-apiserver", "port": 443}}
    taken = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": {"name": API_SERVICE}, "spec": spec}
    site.client.apply(kinds.API_SERVICES, None, taken, field_manager="helm", force=True)
    code, said = site.run("install", "--external-metrics")
    assert code == 0 and "keda/keda-operator-metrics-apiserver" in said, said
    _, said = site.run("doctor")
    assert "external metrics" in said and "another adapter serves" in said
    assert site.run("install")[0] == 0
    assert site.run("install", "--external-metrics")[0] == 0
    assert site.run("uninstall", "--yes")[0] == 0
    live = found()
    assert live is not None and live["spec"]["service"]["namespace"] == "keda"


@pytest.mark.soak
def test_what_somebody_else_installed_is_named_and_left(site: Site) -> None:
    """LLMKube's CRDs and roles that were applied by hand are listed with their owner, and changed only on request."""
    client = site.client
    for document in crd_documents():
        theirs = json.loads(json.dumps(document))
        theirs["spec"]["names"]["shortNames"] = [f"x{theirs['spec']['names']['shortNames'][0]}"]
        client.create(kinds.CRDS, None, theirs, field_manager="helm")
    code, said = site.run("install", "--dry-run")
    assert code == 2 and "held by field manager `helm`" in said and "shortNames" in said

    code, said = site.run("install")
    assert code == 1 and "field manager `helm`" in said and "--take-over" in said
    with pytest.raises(NotFound):
        client.get(kinds.NAMESPACES, None, NAMESPACE)

    code, said = site.run("install", "--take-over")
    assert code == 0, said
    crd = client.get(kinds.CRDS, None, "models.inference.llmkube.dev")
    assert crd["spec"]["names"]["shortNames"] == ["mdl"]
    assert site.run("install", "--dry-run")[0] == 0


@pytest.mark.soak
def test_an_operator_that_helm_installed_is_helms_to_take_out(site: Site) -> None:
    code, said = site.run("install")
    assert code == 0, said
    deployment = site.deployment()
    site.client.delete(kinds.DEPLOYMENTS, NAMESPACE, "herdsman")
    again = {key: deployment[key] for key in ("apiVersion", "kind", "spec")}
    again["metadata"] = {"name": "herdsman", "labels": deployment["metadata"]["labels"]}
    site.client.create(kinds.DEPLOYMENTS, NAMESPACE, again, field_manager="helm")
    code, said = site.run("uninstall", "--yes")
    assert code == 1 and "`helm`" in said and "helm uninstall" in said
    assert site.find(kinds.DEPLOYMENTS) and site.find(ROLES, "herdsman-loop")


def test_the_doctor_says_how_the_installation_is(site: Site) -> None:
    def findings() -> dict[str, Json]:
        code, out = site.run("doctor", "-o", "json")
        assert code == 1, out
        return {row["check"]: row for row in json.loads(out)}

    def findings_where_permissions_are(state: str) -> dict[str, Json]:
        # The API server reads roles from a cache, which follows the writes a moment later.
        found = findings()
        return found if found["permissions"]["state"] == state else {}

    found = findings()
    assert found["crd models.inference.llmkube.dev"]["state"] == "missing"
    assert found["operator"]["state"] == "warning" and "herdsman install" in found["operator"]["hint"]

    assert site.run("install")[0] == 0
    found = eventually(lambda: findings_where_permissions_are("ok"), what="the loop's rights")
    assert found["crd models.inference.llmkube.dev"]["state"] == "ok"
    assert found["operator"]["state"] == "missing" and "0 of 1 ready" in found["operator"]["detail"]
    assert "herdsman-system/herdsman" in found["permissions"]["detail"]
    assert "no loop has led yet" in found["leader"]["detail"]

    rules = [{"op": "remove", "path": "/rules/0"}]
    site.client.patch(ROLES, None, "herdsman-loop", rules, content_type="application/json-patch+json")
    denied = eventually(lambda: findings_where_permissions_are("missing"), what="a missing right")["permissions"]
    assert "models.inference.llmkube.dev" in denied["detail"]


@pytest.mark.soak
def test_the_chart_is_installed_with_helm(site: Site, tmp_path: Path) -> None:
    helm_program = str(tool_or_skip("helm"))
    chart = str(Path(__file__).parents[2] / "charts" / "herdsman")

    def helm(*arguments: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(site.kubeconfig), "HOME": str(tmp_path)}
        done = subprocess.run(
            [helm_program, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    into = ("-n", NAMESPACE, "--create-namespace", "--set", "image=registry.example/herdsman:0.1.0")
    notes = helm("install", "herdsman", chart, *into)
    assert "helm show crds CHART | kubectl apply --server-side --force-conflicts -f -" in notes
    assert site.deployment()["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/herdsman:0.1.0"
    shown = {each["metadata"]["name"] for each in yaml.safe_load_all(helm("show", "crds", chart)) if each}
    assert shown == {document["metadata"]["name"] for document in crd_documents()}
    helm("uninstall", "herdsman", "-n", NAMESPACE)
    assert site.find(kinds.DEPLOYMENTS) is None

    # The classes stay, and now belong to another Helm release. The chart can leave them to it, or take them over.
    peer = {"metadata": {"annotations": {"meta.helm.sh/release-name": "llmkube"}}}
    classes = [each["metadata"]["name"] for each in site.client.list(kinds.PRIORITY_CLASSES)["items"]]
    for name in (name for name in classes if name.startswith("llmkube-")):
        site.client.patch(kinds.PRIORITY_CLASSES, None, name, peer)
    helm("install", "herdsman", chart, *into, "--set", "priorityClasses=false")
    helm("uninstall", "herdsman", "-n", NAMESPACE)
    helm("install", "herdsman", chart, *into, "--take-ownership")
