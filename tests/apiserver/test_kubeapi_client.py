"""The client of the Kubernetes API on a real API server: results of valid and invalid requests."""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml

from kubeapi import errors, kinds
from kubeapi.client import JSON_PATCH, KubeClient
from kubeapi.config import Access, Endpoint, kubeconfig_access
from kubeapi.kinds import Kind
from tests.support.certificates import own_certificate
from tests.support.controlplane import eventually
from tools.localcluster import LocalCluster


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[KubeClient]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    yield client
    client.close()


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def deployment(name: str, /, **container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "example/none", **container}]},
            },
        },
    }


def crd(group: str, plural: str, kind: str) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            },
                        }
                    },
                }
            ],
        },
    }


def test_what_was_applied_is_read_listed_and_deleted(client: KubeClient, namespace: str) -> None:
    made = client.apply(kinds.CONFIG_MAPS, namespace, config_map("a", x="1"), field_manager="tests")
    assert client.get(kinds.CONFIG_MAPS, namespace, "a") == made
    listed = {obj["metadata"]["name"]: obj for obj in client.list(kinds.CONFIG_MAPS, namespace)["items"]}
    assert listed["a"] == made, "list items carry apiVersion and kind as a read does"
    client.delete(kinds.CONFIG_MAPS, namespace, "a")
    with pytest.raises(errors.NotFound):
        client.get(kinds.CONFIG_MAPS, namespace, "a")


def test_a_list_is_read_page_by_page_and_by_label(client: KubeClient, namespace: str) -> None:
    for number in range(5):
        obj = config_map(f"m{number}")
        obj["metadata"]["labels"] = {"set": "pages", "odd": str(number % 2)}
        client.create(kinds.CONFIG_MAPS, namespace, obj)
    names: list[str] = []
    token = None
    while True:
        page = client.list(kinds.CONFIG_MAPS, namespace, label_selector="set=pages", limit=2, continue_token=token)
        assert len(page["items"]) <= 2
        names += [obj["metadata"]["name"] for obj in page["items"]]
        token = page["metadata"].get("continue")
        if not token:
            break
    assert names == [f"m{number}" for number in range(5)]
    odd = client.list(kinds.CONFIG_MAPS, namespace, label_selector="set=pages,odd=1")["items"]
    assert [obj["metadata"]["name"] for obj in odd] == ["m1", "m3"]


def test_apply_removes_what_we_no_longer_name_and_keeps_what_others_own(client: KubeClient, namespace: str) -> None:
    client.apply(kinds.CONFIG_MAPS, namespace, config_map("a", ours="1", old="1"), field_manager="herdsman")
    client.apply(kinds.CONFIG_MAPS, namespace, config_map("a", theirs="2"), field_manager="other")
    after = client.apply(kinds.CONFIG_MAPS, namespace, config_map("a", ours="1"), field_manager="herdsman")
    assert after["data"] == {"ours": "1", "theirs": "2"}


def test_an_apply_conflict_names_the_manager_and_the_field(client: KubeClient, namespace: str) -> None:
    client.apply(kinds.CONFIG_MAPS, namespace, config_map("a", x="1"), field_manager="someone-else")
    with pytest.raises(errors.Conflict) as refused:
        client.apply(kinds.CONFIG_MAPS, namespace, config_map("a", x="2"), field_manager="herdsman")
    (cause,) = refused.value.causes
    assert (cause.field, cause.reason) == (".data.x", "FieldManagerConflict")
    assert "someone-else" in cause.message
    forced = client.apply(kinds.CONFIG_MAPS, namespace, config_map("a", x="2"), field_manager="herdsman", force=True)
    assert forced["data"] == {"x": "2"}


def test_an_apply_refuses_an_unknown_field(client: KubeClient, namespace: str) -> None:
    unknown = {**config_map("a", x="1"), "colour": "red"}
    with pytest.raises(errors.ApiError, match=r"\.colour: field not declared in schema"):
        client.apply(kinds.CONFIG_MAPS, namespace, unknown, field_manager="herdsman")
    with pytest.raises(errors.NotFound):
        client.get(kinds.CONFIG_MAPS, namespace, "a")


def test_a_dry_run_changes_nothing(client: KubeClient, namespace: str) -> None:
    would = client.apply(kinds.CONFIG_MAPS, namespace, config_map("a", x="1"), field_manager="h", dry_run=True)
    assert would["data"] == {"x": "1"}
    client.create(kinds.CONFIG_MAPS, namespace, config_map("b"), dry_run=True)
    for name in ("a", "b"):
        with pytest.raises(errors.NotFound):
            client.get(kinds.CONFIG_MAPS, namespace, name)
    client.create(kinds.CONFIG_MAPS, namespace, config_map("c"))
    client.delete(kinds.CONFIG_MAPS, namespace, "c", dry_run=True)
    assert client.get(kinds.CONFIG_MAPS, namespace, "c")


def test_an_invalid_object_names_each_bad_field(client: KubeClient, namespace: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        client.apply(kinds.DEPLOYMENTS, namespace, deployment("a", name="Not_A_Name", image=""), field_manager="h")
    fields = {cause.field for cause in refused.value.causes}
    assert {"spec.template.spec.containers[0].name", "spec.template.spec.containers[0].image"} <= fields


def test_a_change_of_an_immutable_field_is_invalid_also_in_a_dry_run(client: KubeClient, namespace: str) -> None:
    client.apply(kinds.DEPLOYMENTS, namespace, deployment("a"), field_manager="h")
    changed = deployment("a")
    changed["spec"]["selector"]["matchLabels"] = changed["spec"]["template"]["metadata"]["labels"] = {"app": "b"}
    with pytest.raises(errors.Invalid) as refused:
        client.apply(kinds.DEPLOYMENTS, namespace, changed, field_manager="h", dry_run=True)
    assert [cause.field for cause in refused.value.causes] == ["spec.selector"]


def test_a_field_of_the_wrong_type_is_refused_with_a_message(client: KubeClient, namespace: str) -> None:
    broken = deployment("a")
    broken["spec"]["replicas"] = "many"
    with pytest.raises(errors.ApiError, match="replicas"):
        client.apply(kinds.DEPLOYMENTS, namespace, broken, field_manager="h")


def test_a_name_that_is_taken_and_an_old_version_are_told_apart(client: KubeClient, namespace: str) -> None:
    made = client.create(kinds.CONFIG_MAPS, namespace, config_map("a"), field_manager="h")
    with pytest.raises(errors.AlreadyExists):
        client.create(kinds.CONFIG_MAPS, namespace, config_map("a"))
    client.replace(kinds.CONFIG_MAPS, namespace, {**made, "data": {"x": "1"}})
    with pytest.raises(errors.Conflict):
        client.replace(kinds.CONFIG_MAPS, namespace, {**made, "data": {"x": "2"}})


def test_a_delete_with_the_uid_of_an_earlier_object_is_refused(client: KubeClient, namespace: str) -> None:
    first = client.create(kinds.CONFIG_MAPS, namespace, config_map("a"))
    client.delete(kinds.CONFIG_MAPS, namespace, "a", uid=first["metadata"]["uid"])
    second = client.create(kinds.CONFIG_MAPS, namespace, config_map("a"))
    with pytest.raises(errors.Conflict):
        client.delete(kinds.CONFIG_MAPS, namespace, "a", uid=first["metadata"]["uid"])
    assert client.get(kinds.CONFIG_MAPS, namespace, "a")["metadata"]["uid"] == second["metadata"]["uid"]


def test_patches_merge_or_follow_their_operations(client: KubeClient, namespace: str) -> None:
    client.create(kinds.CONFIG_MAPS, namespace, config_map("a", x="1", y="1"))
    merged = client.patch(kinds.CONFIG_MAPS, namespace, "a", {"data": {"x": "2", "y": None}})
    assert merged["data"] == {"x": "2"}
    operations = [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "remove", "path": "/data/x"}]
    with pytest.raises(errors.Invalid):
        client.patch(kinds.CONFIG_MAPS, namespace, "a", operations, content_type=JSON_PATCH)


def test_the_kind_of_a_crd_is_served_without_a_restart(client: KubeClient, namespace: str) -> None:
    group = f"g{uuid.uuid4().hex[:8]}.example.dev"
    api_version = f"{group}/v1"
    with pytest.raises(errors.KindNotServed):
        client.mapping(api_version, "Widget")
    client.apply(kinds.CRDS, None, crd(group, "widgets", "Widget"), field_manager="tests")

    def served() -> Kind | None:
        try:
            return client.mapping(api_version, "Widget")
        except errors.KindNotServed:
            return None

    widgets = eventually(served, what="the new kind")
    assert widgets == Kind(api_version, "Widget", "widgets", True)
    obj = {"apiVersion": api_version, "kind": "Widget", "metadata": {"name": "w"}, "spec": {"a": 1}}
    client.apply(widgets, namespace, obj, field_manager="tests")
    status = {**obj, "spec": {"a": 2}, "status": {"seen": True}}
    after = client.apply(widgets, namespace, status, field_manager="tests-status", subresource="status")
    assert (after["spec"], after["status"]) == ({"a": 1}, {"seen": True})

    client.delete(kinds.CRDS, None, f"widgets.{group}")

    def gone() -> bool | None:
        try:
            client.get(widgets, namespace, "w")
        except errors.NotFound as error:
            return True if error.message == "404 page not found" and unlisted() else None
        return None

    def unlisted() -> bool:
        """Whether the discovery document has followed, which it does a moment after the path has gone."""
        try:
            client.mapping(api_version, "Widget")
        except errors.KindNotServed:
            return True
        return False

    eventually(gone, what="the kind to disappear")


def test_a_user_without_rights_is_forbidden(control_plane: LocalCluster, namespace: str, tmp_path: Path) -> None:
    control_plane.write_kubeconfig(tmp_path / "nobody", user="nobody")
    nobody = KubeClient.from_kubeconfig(str(tmp_path / "nobody"))
    with pytest.raises(errors.Forbidden, match="nobody"):
        nobody.list(kinds.SECRETS, namespace)


def test_a_wrong_token_is_unauthorized(kubeconfig: Path, tmp_path: Path, namespace: str) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": "wrong"}
    (tmp_path / "wrong").write_text(yaml.safe_dump(config))
    with pytest.raises(errors.Unauthorized):
        KubeClient.from_kubeconfig(str(tmp_path / "wrong")).list(kinds.PODS, namespace)


def test_a_certificate_of_an_authority_we_do_not_trust_is_refused(kubeconfig: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    for cluster in config["clusters"]:
        for key in ("certificate-authority-data", "certificate-authority"):
            cluster["cluster"].pop(key, None)
    (tmp_path / "untrusting").write_text(yaml.safe_dump(config))
    with pytest.raises(errors.Unreachable, match="certificate"):
        KubeClient.from_kubeconfig(str(tmp_path / "untrusting")).text("/readyz")


def test_the_kubernetes_package_reads_the_same_access(kubeconfig: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("apiVersion: v1\nkind: Config\n")
    merged = KubeClient(kubeconfig_access(f"{kubeconfig}:{tmp_path / 'empty'}"))
    assert merged.text("/readyz") == "ok"
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration, persist_config=False)
    by_package = Endpoint(
        server=configuration.host,
        ca_file=configuration.ssl_ca_cert,
        cert_file=configuration.cert_file,
        key_file=configuration.key_file,
    )
    assert KubeClient(Access(lambda: by_package)).text("/readyz") == "ok"


def test_a_certificate_of_an_exec_plugin_is_taken_by_the_api_server_and_renewed(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    user = config["users"][0]["user"]
    pair = {
        f"client{part}Data": base64.b64decode(user[f"client-{name}-data"]).decode()
        for part, name in (("Certificate", "certificate"), ("Key", "key"))
    }
    api = "client.authentication.k8s.io/v1"
    soon = (datetime.now(UTC) + timedelta(seconds=3600)).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = {"apiVersion": api, "kind": "ExecCredential", "status": {**pair, "expirationTimestamp": soon}}
    (tmp_path / "answer").write_text(json.dumps(answer))
    section = {"apiVersion": api, "command": "cat", "args": ["answer"]}
    config["users"] = [{"name": config["users"][0]["name"], "user": {"exec": section}}]
    (tmp_path / "plugin").write_text(yaml.safe_dump(config))
    client = KubeClient.from_kubeconfig(str(tmp_path / "plugin"))
    assert "system:masters" in who_am_i(client)["groups"]
    (tmp_path / "answer").write_text(json.dumps({**answer, "status": {"token": "of nobody"}}))
    later = time.monotonic() + 3500
    monkeypatch.setattr("kubeapi.plugin_credentials.monotonic", lambda: later)
    monkeypatch.setattr("kubeapi.rest.CERTIFICATES_CHECK_S", -1.0)
    with pytest.raises(errors.Unauthorized):
        who_am_i(client)


def who_am_i(client: KubeClient) -> dict[str, Any]:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
    found: dict[str, Any] = answer["status"]["userInfo"]
    return found


def test_the_api_server_acts_as_whom_the_kubeconfig_names(kubeconfig: Path, tmp_path: Path, namespace: str) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    extra = {"example.com/Scopes": ["view", "edit"]}
    for user in config["users"]:
        user["user"] |= {"as": "ann", "as-uid": "u-1", "as-groups": ["dev", "ops"], "as-user-extra": extra}
    (tmp_path / "acting").write_text(yaml.safe_dump(config))
    client = KubeClient.from_kubeconfig(str(tmp_path / "acting"))
    found = who_am_i(client)
    assert (found["username"], found["uid"]) == ("ann", "u-1")
    assert {"dev", "ops"} <= set(found["groups"]) and "system:masters" not in found["groups"]
    assert found["extra"] == {"example.com/scopes": ["view", "edit"]}
    with pytest.raises(errors.Forbidden, match='User "ann"'):
        client.list(kinds.SECRETS, namespace)
    with pytest.raises(errors.Forbidden, match='User "ann"'):
        client.watch(kinds.PODS, namespace)
    with pytest.raises(errors.Forbidden, match='User "ann"'):
        list(client.stream(f"{kinds.PODS.path(namespace, 'a')}/log", silence_s=5))
    refused = client.exchange("GET", f"{kinds.PODS.path(namespace, 'a')}:80/proxy/", timeout_s=5, max_bytes=4096)
    assert refused.status == 403


def test_a_renewed_client_certificate_is_used(control_plane: LocalCluster, tmp_path: Path) -> None:
    def renew(user: str) -> dict[str, Any]:
        control_plane.write_kubeconfig(tmp_path / "of-user", user=user)
        config = yaml.safe_load((tmp_path / "of-user").read_text())
        pair = config["users"][0]["user"]
        for field in ("client-certificate", "client-key"):
            (tmp_path / field).write_bytes(base64.b64decode(pair[f"{field}-data"]))
        config["users"][0]["user"] = {field: field for field in ("client-certificate", "client-key")}
        return dict(config)

    (tmp_path / "config").write_text(yaml.safe_dump(renew("first")))
    client = KubeClient.from_kubeconfig(str(tmp_path / "config"))
    assert who_am_i(client)["username"] == "first"
    renew("second")
    assert who_am_i(client)["username"] == "first", "connections that stand are kept for a minute"
    client._tls_checked_at = float("-inf")
    assert who_am_i(client)["username"] == "second"

    # A certificate that the server refuses, such as an expired one, is replaced at once.
    own = own_certificate(tmp_path).read_text()
    for field in ("client-certificate", "client-key"):
        (tmp_path / field).write_text(own)
    refused = KubeClient.from_kubeconfig(str(tmp_path / "config"))
    with pytest.raises(errors.Unauthorized):
        who_am_i(refused)
    renew("third")
    refused._reloaded_at = float("-inf")
    assert who_am_i(refused)["username"] == "third"


def test_many_threads_share_one_client(client: KubeClient, namespace: str) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                obj = config_map(f"t{number}", turn=str(turn))
                client.apply(kinds.CONFIG_MAPS, namespace, obj, field_manager="tests")
                assert client.get(kinds.CONFIG_MAPS, namespace, f"t{number}")["data"]["turn"] == str(turn)
        except BaseException as error:
            failures.append(error)

    before = client.requests_total
    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert client.requests_total - before == 12 * 20
