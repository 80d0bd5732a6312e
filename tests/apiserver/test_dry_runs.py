"""`--dry-run` on a real API server: it checks each write, names it, and stores nothing."""

from __future__ import annotations

import json

import pytest

from automation.cli.main import invoke
from automation.install.comparison import MANAGER, compare
from automation.settings import SYSTEM_NAMESPACE
from components.rendered import RenderedObject
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.dry_run import DryRunClient
from kubeapi.errors import Invalid, NotFound
from kubeapi.json_types import Json
from tests.support.controlplane import Api
from tests.support.definitions import install_crds
from tools.localcluster import LocalCluster


@pytest.fixture
def client(control_plane: LocalCluster, api: Api) -> KubeClient:
    install_crds(api)
    return KubeClient.from_kubeconfig(str(control_plane.kubeconfig))


def test_a_client_for_dry_runs_stores_nothing(control_plane: LocalCluster, client: KubeClient, namespace: str) -> None:
    dry = DryRunClient.default(str(control_plane.kubeconfig))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}
    client.create(kinds.CONFIG_MAPS, namespace, body)
    dry.patch(kinds.CONFIG_MAPS, namespace, "a", {"data": {"k": "v"}})
    assert dry.changes == [], "the value is there already"
    dry.patch(kinds.CONFIG_MAPS, namespace, "a", {"data": {"k": "w"}})
    dry.apply(kinds.CONFIG_MAPS, namespace, {**body, "metadata": {"name": "b"}}, field_manager="test")
    dry.delete(kinds.CONFIG_MAPS, namespace, "a")
    dry.create(kinds.CONFIG_MAPS, namespace, body)
    dry.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "not-there"}})
    dry.create(kinds.CONFIG_MAPS, "not-there", body)
    dry.request("PUT", kinds.CONFIG_MAPS.path(namespace, "a"), body={**body, "data": {"k": "x"}})
    assert dry.changes == [
        f"change ConfigMap {namespace}/a",
        f"create ConfigMap {namespace}/b",
        f"delete ConfigMap {namespace}/a",
        f"create ConfigMap {namespace}/a",
        "create Namespace not-there",
        "create ConfigMap not-there/a",
    ]
    assert client.get(kinds.CONFIG_MAPS, namespace, "a")["data"] == {"k": "v"}
    for kind, name in ((kinds.CONFIG_MAPS, "b"), (kinds.SECRETS, "c")):
        with pytest.raises(NotFound):
            client.get(kind, namespace, name)
    with pytest.raises(Invalid):
        dry.create(kinds.CONFIG_MAPS, namespace, {**body, "metadata": {"name": "Not A Name"}})


def test_a_write_of_another_client_in_between_is_not_counted(
    control_plane: LocalCluster, client: KubeClient, namespace: str
) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}
    client.create(kinds.CONFIG_MAPS, namespace, body)

    class Disturbed(DryRunClient):
        def find(self, kind: kinds.Kind, namespace: str | None, name: str) -> Json | None:
            read = super().find(kind, namespace, name)
            client.patch(kind, namespace, name, {"data": {"other": "value"}})
            return read

    dry = Disturbed.default(str(control_plane.kubeconfig))
    dry.patch(kinds.CONFIG_MAPS, namespace, "a", {"data": {"k": "v"}})
    assert dry.changes == []


def test_a_write_of_another_client_in_between_is_no_change_of_an_installation(
    control_plane: LocalCluster, client: KubeClient, namespace: str
) -> None:
    metadata = {"name": "a", "namespace": namespace}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "v"}}
    client.apply(kinds.CONFIG_MAPS, namespace, body, field_manager=MANAGER)
    reads: list[str] = []

    class Disturbed(KubeClient):
        """A client after whose first read another client writes the object."""

        def find(self, kind: kinds.Kind, namespace: str | None, name: str) -> Json | None:
            read = super().find(kind, namespace, name)
            reads.append(name)
            if len(reads) == 1:
                client.patch(kind, namespace, name, {"data": {"other": "value"}})
            return read

    disturbed = Disturbed.from_kubeconfig(str(control_plane.kubeconfig))
    (found,) = compare(disturbed, [RenderedObject("a", "", body)])
    assert (found.change.op, reads) == ("same", ["a", "a"])


def test_commands_name_what_they_would_do_and_do_nothing(
    control_plane: LocalCluster, client: KubeClient, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host = f"h-{namespace}"
    client.create(
        kinds.HOSTS,
        None,
        {
            "apiVersion": kinds.HOSTS.api_version,
            "kind": "Host",
            "metadata": {"name": host},
            "spec": {"transport": "agent"},
        },
    )
    model = {"metadata": {"name": "chat"}, "spec": {"source": "https://models.example/a.gguf"}}
    client.create(kinds.MODELS, namespace, {"apiVersion": kinds.MODELS.api_version, "kind": "Model", **model})
    service = {"metadata": {"name": "chat"}, "spec": {"modelRef": "chat", "replicas": 1}}
    client.create(
        kinds.INFERENCE_SERVICES,
        namespace,
        {"apiVersion": kinds.INFERENCE_SERVICES.api_version, "kind": "InferenceService", **service},
    )
    if not client.list(kinds.NAMESPACES, field_selector=f"metadata.name={SYSTEM_NAMESPACE}")["items"]:
        system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
        client.create(kinds.NAMESPACES, None, system)

    def content() -> str:
        """Return the objects that the commands name. Other objects may be those of other tests."""
        found = [client.list(kind, namespace)["items"] for kind in (kinds.MODELS, kinds.INFERENCE_SERVICES)]
        accounts = client.list(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE)["items"]
        named = [each for each in accounts if namespace in each["metadata"]["name"]]
        secrets = client.list(kinds.SECRETS, label_selector="herdsman.dev/gateway-key")["items"]
        return json.dumps([found, client.get(kinds.HOSTS, None, host), named, secrets])

    def dry(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = invoke([*words, "--dry-run", "--kubeconfig", str(control_plane.kubeconfig)])
        return code, capsys.readouterr().out

    before = content()
    of_service = f"InferenceService {namespace}/chat"
    assert dry("scale", "chat", "-r", "3", "-n", namespace) == (2, f"Would change {of_service}\n")
    assert dry("scale", "chat", "-r", "1", "-n", namespace) == (0, "Nothing would change\n")
    assert dry("stop", "chat", "-n", namespace) == (2, f"Would change {of_service}\n")
    assert dry("start", "chat", "-n", namespace) == (0, "Nothing would change\n")
    code, told = dry("delete", "chat", "-n", namespace, "--purge")
    assert code == 2 and told.splitlines()[:2] == [f"Would delete {of_service}", f"Would delete Model {namespace}/chat"]
    code, told = dry("pull", "other", "--source", "https://models.example/b.gguf", "-n", namespace)
    assert (code, told) == (2, f"Would create Model {namespace}/other\n")
    for words, change in (
        (("host", "cordon", host), f"change Host {host}"),
        (("host", "drain", host), f"change Host {host}"),
        (("host", "remove", host), f"delete Host {host}"),
        (("key", "create", "ci"), "create Secret"),
        (("host", "invite", f"new-{namespace}"), f"create ServiceAccount {SYSTEM_NAMESPACE}/new-{namespace}"),
    ):
        code, told = dry(*words)
        assert code == 2 and f"Would {change}" in told, (words, told)
    assert dry("host", "uncordon", host)[0] in (0, 2)
    assert dry("scale", "nobody", "-r", "1", "-n", namespace)[0] == 1
    assert content() == before
