"""Certificates on a real API server. The loop may create and patch Secrets, and may not read them."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from automation.certificates.issuing import (
    ANNOTATION_NAMES,
    LOOK_EVERY,
    PEER_EXPIRY,
    RENEW_AFTER,
    ROUND_S,
    CertificateIssuer,
    CertificateWatch,
)
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Forbidden
from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.desired.workloads import Certificate
from tests.support.loop import eventually
from tests.support.rights import await_rights
from tests.support.workloads import described, marks
from tools.localcluster import LocalCluster

NAME = "svc-kserve-self-signed-certs"
WANTED = Certificate(
    secret=NAME, labels=marks("svc"), dns_names=("svc.ns.svc", "localhost"), ip_addresses=("127.0.0.1",)
)
WIDER = WANTED.model_copy(update={"dns_names": (*WANTED.dns_names, "svc-epp.ns.svc")})


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = datetime.datetime.now(datetime.UTC)

    def __call__(self) -> datetime.datetime:
        return self.now


class Scene:
    """One namespace, seen by its administrator and by the loop."""

    def __init__(self, admin: KubeClient, loop: KubeClient, namespace: str) -> None:
        self.admin, self.loop, self.namespace = admin, loop, namespace
        # The owner of a Secret must exist; otherwise the garbage collector deletes the Secret.
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "svc"}}
        self.cr = admin.create(kinds.CONFIG_MAPS, namespace, body)
        self.desired: DesiredService = described(namespace=namespace, owner=None)
        self.clock = Clock()
        self.issuer = CertificateIssuer(loop, clock=self.clock)

    def ensure(self, certificate: Certificate = WANTED, issuer: CertificateIssuer | None = None) -> str:
        """Make the certificate's Secret, and return the reason of the problem; empty if there is none."""
        problem = (issuer or self.issuer).ensure(self.desired.key, self.cr, certificate, self.desired)
        return problem.reason if problem is not None else ""

    def secret(self) -> Json:
        return self.admin.get(kinds.SECRETS, self.namespace, NAME)

    def owner(self) -> Json:
        metadata = self.cr["metadata"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": metadata["name"], "uid": metadata["uid"]}
        return {**reference, "controller": True}

    def existing(self, *, files: dict[str, str] | None = None, **metadata: Any) -> Json:
        data = files or {"tls.crt": "peer", "tls.key": "peer"}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": NAME, **metadata},
            "stringData": data,
        }
        return self.admin.create(kinds.SECRETS, self.namespace, body)


@pytest.fixture
def scene(control_plane: LocalCluster, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    admin = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    user = f"certificates-{namespace}"
    group = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch"]}]
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": user}, "rules": rules}
    admin.create(kinds.ROLES, namespace, role)
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    admin.create(kinds.ROLE_BINDINGS, namespace, binding)
    await_rights(admin, user, namespace, *rules)
    kubeconfig = tmp_path / "kubeconfig"
    control_plane.write_kubeconfig(kubeconfig, user=user)
    loop = KubeClient.from_kubeconfig(str(kubeconfig))
    try:
        yield Scene(admin, loop, namespace)
    finally:
        loop.close()
        admin.close()


def certificate_of(secret: Json) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))


def test_it_is_issued_once_with_the_rights_to_create_and_patch_alone(scene: Scene) -> None:
    assert scene.ensure() == ""
    made = scene.secret()
    assert made["type"] == "kubernetes.io/tls"
    assert set(made["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    assert made["metadata"]["ownerReferences"][0]["uid"] == scene.cr["metadata"]["uid"]
    assert made["metadata"]["labels"] == marks("svc")
    names = certificate_of(made).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["svc.ns.svc", "localhost"]
    with pytest.raises(Forbidden):
        scene.loop.get(kinds.SECRETS, scene.namespace, NAME)
    # Neither this process nor the next one writes the Secret again. This process does not even send a request.
    asked = scene.loop.requests_total
    assert scene.ensure() == ""
    assert scene.loop.requests_total == asked
    assert scene.ensure(issuer=CertificateIssuer(scene.loop, clock=scene.clock)) == ""
    assert scene.secret()["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_no_answer_to_its_requests_holds_the_key(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes] = []
    plain = KubeClient._request

    def overheard(self: KubeClient, *args: Any) -> bytes:
        answer = plain(self, *args)
        answers.append(answer)
        return answer

    monkeypatch.setattr(KubeClient, "_request", overheard)
    for certificate in (WANTED, WIDER):
        assert scene.ensure(certificate) == ""
    assert len(answers) == 3, "one is made, looked at, and replaced"
    assert all(b'"kind":"PartialObjectMetadata"' in answer for answer in answers)
    assert not any(b'"data"' in answer for answer in answers)


def test_it_is_replaced_when_a_name_is_missing_and_when_it_is_old(scene: Scene) -> None:
    scene.ensure()
    first = scene.secret()
    assert scene.ensure(WIDER) == ""
    wider = scene.secret()
    assert wider["metadata"]["uid"] == first["metadata"]["uid"]
    assert wider["data"]["tls.key"] != first["data"]["tls.key"]
    assert "svc-epp.ns.svc" in wider["metadata"]["annotations"][ANNOTATION_NAMES]
    # Fewer names cause no renewal; the end of two thirds of the lifetime does.
    scene.clock.now += LOOK_EVERY
    assert scene.ensure() == ""
    assert scene.secret()["data"] == wider["data"]
    scene.clock.now += RENEW_AFTER
    assert scene.ensure(WIDER) == ""
    renewed = scene.secret()
    assert certificate_of(renewed).not_valid_after_utc > certificate_of(wider).not_valid_after_utc


def test_one_that_is_deleted_comes_back(scene: Scene) -> None:
    scene.ensure()
    scene.admin.delete(kinds.SECRETS, scene.namespace, NAME)
    scene.clock.now += LOOK_EVERY
    assert scene.ensure() == ""
    assert scene.secret()["data"]["tls.crt"]


def test_one_that_is_deleted_is_missed_without_a_pass(scene: Scene) -> None:
    asked: list[ServiceKey] = []
    now = 0.0
    watch = CertificateWatch(scene.issuer, requeue=lambda key, _delay_s: asked.append(key), clock=lambda: now)
    scene.ensure()
    watch.check_all()
    now += ROUND_S
    watch.check_all()
    assert asked == []  # the Secret exists
    scene.admin.delete(kinds.SECRETS, scene.namespace, NAME)
    now += ROUND_S
    watch.check_all()
    assert asked == [scene.desired.key]
    assert scene.ensure() == ""
    assert scene.secret()["data"]["tls.crt"]


def test_what_the_peer_issued_for_the_same_service_stays_until_it_is_due(scene: Scene) -> None:
    due = scene.clock.now + datetime.timedelta(days=30)
    annotations = {PEER_EXPIRY: due.strftime("%Y-%m-%dT%H:%M:%SZ")}
    before = scene.existing(ownerReferences=[scene.owner()], annotations=annotations)
    assert scene.ensure(WIDER) == ""
    assert scene.secret()["data"] == before["data"]
    scene.clock.now = due + datetime.timedelta(seconds=1)
    assert scene.ensure() == ""
    after = scene.secret()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert certificate_of(after).not_valid_after_utc > scene.clock.now


def test_the_users_own_is_used_and_that_of_another_object_is_not(scene: Scene) -> None:
    own = scene.existing()
    assert scene.ensure(WIDER) == ""
    assert scene.secret()["metadata"]["resourceVersion"] == own["metadata"]["resourceVersion"]
    scene.admin.delete(kinds.SECRETS, scene.namespace, NAME)
    other = {**scene.owner(), "kind": "Namespace", "name": scene.namespace}
    other["uid"] = scene.admin.get(kinds.NAMESPACES, None, scene.namespace)["metadata"]["uid"]
    theirs = scene.existing(ownerReferences=[other])
    assert scene.ensure(issuer=CertificateIssuer(scene.loop)) == "CertificateNotOurs"
    assert scene.secret()["data"] == theirs["data"]


def test_many_loops_at_once_issue_one(scene: Scene) -> None:
    issuers = [CertificateIssuer(scene.loop) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda issuer: scene.ensure(issuer=issuer), issuers)) == {""}
    entries = scene.secret()["metadata"]["managedFields"]
    assert [entry["operation"] for entry in entries] == ["Update"], "made once, and never written again"


def test_without_the_rights_it_says_which_are_missing(scene: Scene) -> None:
    scene.admin.delete(kinds.ROLE_BINDINGS, scene.namespace, f"certificates-{scene.namespace}")
    # The authorizer's cache is updated a moment later.
    problem = eventually(
        lambda: CertificateIssuer(scene.loop).ensure(scene.desired.key, scene.cr, WANTED, scene.desired),
        what="the problem",
    )
    assert problem.reason == "CertificateFailed"
    assert "create and patch on Secrets" in problem.message
