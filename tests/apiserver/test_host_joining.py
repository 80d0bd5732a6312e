"""A host joins by an invitation, on a real API server: its rights, and what an invitation cannot do twice or later."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from agent.server.cluster.host_lease import HostLease, lease_name
from agent.server.joining.identity import Identity, identity_of
from agent.server.joining.invitation import Invitation, decoded, encoded
from agent.server.joining.leftovers import invitation_name
from agent.server.joining.renewal import TokenRenewal
from agent.server.joining.token import request_token
from automation.cli import agent_service, host_invite, host_join
from automation.cli.main import invoke
from automation.install import host_identity
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.config import Access
from kubeapi.endpoint import Endpoint
from kubeapi.errors import ApiError, Forbidden, NotFound, Unauthorized
from kubeapi.json_types import Json
from tests.support.agent_rights import await_policies, bind_agent, install_rights
from tests.support.controlplane import eventually
from tests.support.loop import install_crds
from tests.support.rights import await_rights
from tests.support.services import FakedMachine
from tools.localcluster import LocalCluster

HOSTS = (
    "mac-1",
    "mac-2",
    "once-1",
    "stolen-1",
    "revoked-1",
    "late-1",
    "renewed-1",
    "whole-1",
    "taken-1",
    "placed-1",
    "proven-1",
)
Herdsman = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def admin(control_plane: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeClient]:
    client = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    install_crds(client)
    install_rights(client)
    probe = tmp_path_factory.mktemp("probe") / "kubeconfig"
    bind_agent(client, "probe")
    control_plane.write_kubeconfig(probe, user="probe")
    await_policies(KubeClient.from_kubeconfig(str(probe)))
    yield client
    for name in HOSTS:
        invoke(["host", "revoke", name, "--kubeconfig", str(control_plane.kubeconfig)])
        for kind, where, each in ((kinds.HOSTS, None, name), (kinds.LEASES, SYSTEM_NAMESPACE, lease_name(name))):
            with suppress(NotFound):
                client.delete(kind, where, each)
    client.close()


@pytest.fixture
def herdsman(admin: KubeClient, control_plane: LocalCluster, capfd: pytest.CaptureFixture[str]) -> Herdsman:
    """Run a command of `herdsman host` as the administrator. Returns its exit code, stdout and stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        own = () if words[0] == "join" else ("--kubeconfig", str(control_plane.kubeconfig))
        code = invoke(["host", *words, *own])
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def invited(admin: KubeClient, herdsman: Herdsman) -> Callable[..., str]:
    """Invite a host, and return the text of the invitation."""

    def invite(name: str, *options: str) -> str:
        code, out, err = herdsman("invite", name, *options)
        assert code == 0, err
        account = f"system:serviceaccount:{SYSTEM_NAMESPACE}:{invitation_name(name)}"
        rule = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [name], "verbs": ["create"]}
        await_rights(admin, account, SYSTEM_NAMESPACE, rule)
        return out

    return invite


@pytest.fixture
def joined(herdsman: Herdsman, tmp_path: Path) -> Callable[[str], Path]:
    """Join by an invitation without an installation, and return the folder of the identity."""

    def join(text: str) -> Path:
        file, folder = tmp_path / "invitation", tmp_path / "identity"
        file.write_text(text)
        code, _, err = herdsman("join", "--file", str(file), "--folder", str(folder), "--no-install")
        assert code == 0, err
        return folder

    return join


def bearer(invitation: Invitation, token: str) -> KubeClient:
    endpoint = Endpoint(invitation.server, authorization=lambda: f"Bearer {token}", ca_data=invitation.ca)
    return KubeClient(Access(lambda: endpoint))


def status_of(kind: kinds.Kind, name: str) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "status": {"address": "::1"}}


def report(client: KubeClient, host: str) -> None:
    client.apply(kinds.HOSTS, None, status_of(kinds.HOSTS, host), field_manager="t", force=True, subresource="status")


def process(admin: KubeClient, namespace: str, host: str) -> str:
    body = {
        "apiVersion": kinds.HOST_PROCESSES.api_version,
        "kind": "HostProcess",
        "metadata": {"name": f"on-{host}", "labels": {"herdsman.dev/host": host}},
        "spec": {"host": host, "service": f"on-{host}", "argv": ["llama-server"], "serviceName": f"on-{host}"},
    }
    admin.create(kinds.HOST_PROCESSES, namespace, body)
    return f"on-{host}"


def allowed(call: Callable[[], object]) -> None:
    """Make a call that the API server must allow as soon as it has read the new roles."""

    def done() -> bool:
        try:
            call()
        except Forbidden:
            return False
        return True

    eventually(done, what="the rights to be in force", timeout_s=60)


def refused(call: Callable[[], object], *kinds_of_error: type[ApiError]) -> None:
    with pytest.raises(kinds_of_error or (Forbidden,)):
        call()


def test_a_machine_joins_by_three_steps_and_its_agent_reports(
    admin: KubeClient,
    control_plane: LocalCluster,
    herdsman: Herdsman,
    invited: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    machine = FakedMachine(tmp_path / "root", "systemctl")
    request.addfinalizer(machine.end)
    for module in (agent_service, host_join):
        monkeypatch.setattr(module, "this_machine", lambda: machine)
    text = invited("whole-1", "--label", "room=attic", "--server", control_plane.server)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    store, folder, me = tmp_path / "store", tmp_path / "identity", machine.facts.user
    options = ("--user", me, "--folder", str(folder), "--store", str(store), "--address", "127.0.0.1")
    code, out, err = herdsman("join", *options, "--heartbeat", "1")
    assert code == 0, out + err
    assert "This machine is host `whole-1`" in out

    def host_is_ready() -> bool:
        [row] = [each for each in json.loads(herdsman("list", "-o", "json")[1]) if each["name"] == "whole-1"]
        return bool(row["state"] == "Ready" and row["heartbeat"] != "never")

    eventually(host_is_ready, what="the host to report", timeout_s=60)
    assert admin.get(kinds.HOSTS, None, "whole-1")["metadata"]["labels"] == {"room": "attic"}
    with pytest.raises(NotFound):
        admin.get(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, invitation_name("whole-1"))
    assert invoke(["agent", "uninstall"]) == 0


def test_a_host_that_joined_may_do_what_its_agent_does_and_nothing_for_another(
    admin: KubeClient,
    namespace: str,
    herdsman: Herdsman,
    invited: Callable[..., str],
    joined: Callable[[str], Path],
    capfd: pytest.CaptureFixture[str],
) -> None:
    invited("mac-2")
    text = invited("mac-1")
    assert "no machine has joined" in herdsman("list")[1]
    folder = joined(text)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}
    assert modes == {"kubeconfig": 0o600, "ca.crt": 0o600, "token": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    own, other = process(admin, namespace, "mac-1"), process(admin, namespace, "mac-2")
    agent = KubeClient.from_kubeconfig(str(folder / "kubeconfig"))

    allowed(lambda: report(agent, "mac-1"))
    only = agent.list(kinds.HOSTS, field_selector="metadata.name=mac-1")["items"]
    assert [each["metadata"]["name"] for each in only] == ["mac-1"]
    assert len(agent.list(kinds.HOST_PROCESSES, namespace)["items"]) == 2
    ready = {"status": {"phase": "Ready"}}
    agent.patch(kinds.HOST_PROCESSES, namespace, own, ready, subresource="status")
    lease = HostLease(agent, host="mac-1", namespace=SYSTEM_NAMESPACE, holder="agent-1", on_lost=lambda _: None)
    lease.acquire()
    assert lease.is_trusted

    kubeconfig = ("--host", "mac-1", "--kubeconfig", str(folder / "kubeconfig"), "--address", "127.0.0.1")
    invoke(["agent", "doctor", *kubeconfig, "--store", str(folder), "-o", "json"])
    checks = {each["check"]: each for each in json.loads(capfd.readouterr().out)}
    assert checks["permissions"]["state"] == checks["token"]["state"] == "ok", checks

    for attack in (
        lambda: report(agent, "mac-2"),
        lambda: agent.list(kinds.HOSTS),
        lambda: agent.get(kinds.HOSTS, None, "mac-2"),
        lambda: agent.patch(kinds.HOST_PROCESSES, namespace, other, ready, subresource="status"),
        lambda: agent.get(kinds.LEASES, SYSTEM_NAMESPACE, lease_name("mac-2")),
        lambda: agent.delete(kinds.LEASES, SYSTEM_NAMESPACE, lease_name("mac-1")),
        lambda: request_token(agent, namespace=SYSTEM_NAMESPACE, account="mac-2"),
        lambda: request_token(agent, namespace=SYSTEM_NAMESPACE, account=invitation_name("mac-1")),
        lambda: agent.delete(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, "mac-2"),
        lambda: agent.list(kinds.SECRETS, SYSTEM_NAMESPACE),
        lambda: agent.create(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, {"metadata": {"name": "third"}}),
    ):
        refused(attack)


def test_an_invitation_gives_one_token_of_its_host_and_is_used_once(
    invited: Callable[..., str], joined: Callable[[str], Path], herdsman: Herdsman, tmp_path: Path
) -> None:
    text = invited("once-1")
    invitation = decoded(text)
    thief = bearer(invitation, invitation.token)
    for attack in (
        lambda: thief.get(kinds.HOSTS, None, "once-1"),
        lambda: thief.list(kinds.HOST_PROCESSES),
        lambda: request_token(thief, namespace=SYSTEM_NAMESPACE, account="mac-2"),
        lambda: request_token(thief, namespace=SYSTEM_NAMESPACE, account="default"),
        lambda: request_token(thief, namespace=SYSTEM_NAMESPACE, account=invitation_name("once-1")),
    ):
        refused(attack)
    folder = joined(text)
    # The same machine may run the command again, for example after its installation failed.
    before = (folder / "token").read_text()
    assert joined(text) == folder and (folder / "token").read_text() == before

    again = tmp_path / "another-machine"
    code, out, err = herdsman("join", "-f", str(tmp_path / "invitation"), "--folder", str(again), "--no-install")
    assert code == 1 and "it was used, replaced or revoked" in err and "host revoke once-1" in err
    assert invitation.token not in out + err and not again.exists()
    refused(lambda: request_token(thief, namespace=SYSTEM_NAMESPACE, account="once-1"), Forbidden, Unauthorized)


def test_a_stolen_invitation_is_noticed_and_its_theft_ends_by_a_revocation(
    invited: Callable[..., str], herdsman: Herdsman, tmp_path: Path
) -> None:
    text = invited("stolen-1")
    invitation, file = decoded(text), tmp_path / "stolen"
    file.write_text(text)
    stolen, _ = request_token(bearer(invitation, invitation.token), namespace=SYSTEM_NAMESPACE, account="stolen-1")
    thief = bearer(invitation, stolen)

    def runs_an_agent() -> bool:
        lease = HostLease(thief, host="stolen-1", namespace=SYSTEM_NAMESPACE, holder="thief", on_lost=lambda _: None)
        lease.acquire()
        return lease.is_trusted

    assert runs_an_agent()
    folder = tmp_path / "mine"
    code, _, err = herdsman("join", "-f", str(file), "--folder", str(folder), "--no-install")
    assert code == 1 and "another machine has joined as host `stolen-1`: agent thief" in err
    assert not (folder / "token").exists()

    assert herdsman("revoke", "stolen-1")[0] == 0
    refused(lambda: report(thief, "stolen-1"), Forbidden, Unauthorized)
    refused(lambda: request_token(thief, namespace=SYSTEM_NAMESPACE, account="stolen-1"), Forbidden, Unauthorized)
    # A later identity of the same name does not bring the stolen token back, nor one that it could ask for.
    invited("stolen-1")
    refused(lambda: report(thief, "stolen-1"), Unauthorized)
    refused(lambda: request_token(thief, namespace=SYSTEM_NAMESPACE, account="stolen-1"), Unauthorized)


def test_a_host_of_one_namespace_has_no_rights_in_another(
    invited: Callable[..., str], joined: Callable[[str], Path], namespace: str, herdsman: Herdsman
) -> None:
    text = invited("placed-1", "--namespace", namespace)
    assert decoded(text).served == (namespace,)
    agent = KubeClient.from_kubeconfig(str(joined(text) / "kubeconfig"))
    allowed(lambda: agent.list(kinds.HOST_PROCESSES, namespace))
    refused(lambda: agent.list(kinds.HOST_PROCESSES))
    refused(lambda: agent.list(kinds.HOST_PROCESSES, "default"))
    code, _, err = herdsman("invite", "placed-2", "--namespace", "nowhere")
    assert code == 1 and "no namespace `nowhere`" in err
    assert herdsman("revoke", "placed-1")[0] == 0
    refused(lambda: agent.list(kinds.HOST_PROCESSES, namespace), Forbidden, Unauthorized)


def test_a_revocation_ends_a_joined_host_at_once(
    admin: KubeClient, invited: Callable[..., str], joined: Callable[[str], Path], herdsman: Herdsman
) -> None:
    agent = KubeClient.from_kubeconfig(str(joined(invited("revoked-1")) / "kubeconfig"))
    allowed(lambda: report(agent, "revoked-1"))
    code, out, _ = herdsman("revoke", "revoked-1")
    assert code == 0 and "herdsman host remove revoked-1" in out
    refused(lambda: report(agent, "revoked-1"), Forbidden, Unauthorized)
    refused(lambda: agent.list(kinds.HOST_PROCESSES), Forbidden, Unauthorized)
    assert admin.get(kinds.HOSTS, None, "revoked-1")["spec"]["unschedulable"] is True
    label = "herdsman.dev/host=revoked-1"
    for kind in (kinds.ROLES, kinds.ROLE_BINDINGS, kinds.SERVICE_ACCOUNTS, kinds.CLUSTER_ROLE_BINDINGS):
        assert admin.list(kind, label_selector=label)["items"] == []
    code, _, err = herdsman("revoke", "revoked-1")
    assert code == 1 and "has no identity" in err


def test_an_invitation_ends_by_its_time(
    control_plane: LocalCluster, invited: Callable[..., str], herdsman: Herdsman, tmp_path: Path
) -> None:
    invitation, file = decoded(invited("late-1")), tmp_path / "late"
    ended = _ended(invitation.token, control_plane.layout.pki / "service-accounts.key")
    refused(
        lambda: request_token(bearer(invitation, ended), namespace=SYSTEM_NAMESPACE, account="late-1"), Unauthorized
    )
    # The machine itself says it without a request; and a machine with a slow clock hears it from the server.
    for text, told in (
        (dataclasses.replace(invitation, expires="2026-01-01T00:00:00Z"), "ended at 2026-01-01"),
        (dataclasses.replace(invitation, token=ended), "it has ended"),
    ):
        file.write_text(encoded(text))
        code, _, err = herdsman("join", "-f", str(file), "--folder", str(tmp_path / "late-host"), "--no-install")
        assert code == 1 and told in err, err


def test_the_invitation_is_sent_to_the_server_that_its_certificate_proves(
    control_plane: LocalCluster, invited: Callable[..., str], herdsman: Herdsman, tmp_path: Path
) -> None:
    invitation, file = decoded(invited("proven-1")), tmp_path / "invitation"
    other = (control_plane.layout.pki / "etcd-ca.crt").read_text()
    file.write_text(encoded(dataclasses.replace(invitation, ca=other)))
    code, _, err = herdsman("join", "-f", str(file), "--folder", str(tmp_path / "host"), "--no-install")
    assert code == 1 and "nothing was sent" in err and not (tmp_path / "host").exists()


def _ended(token: str, key_file: Path) -> str:
    """Sign the same token with an end in the past, by the key of the API server."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    head, body, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    claims.update(exp=claims["iat"] - 60, iat=claims["iat"] - 3660, nbf=claims["nbf"] - 3660)
    signed = f"{head}.{part(json.dumps(claims).encode())}"
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    r, s = utils.decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{part(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def test_an_agent_renews_its_token_and_ends_an_invitation_that_was_left(
    admin: KubeClient, invited: Callable[..., str], joined: Callable[[str], Path], herdsman: Herdsman
) -> None:
    folder = joined(invited("renewed-1"))
    found = identity_of(folder / "kubeconfig")
    assert isinstance(found, Identity) and found.host == "renewed-1"
    admin.create(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, {"metadata": {"name": invitation_name("renewed-1")}})
    before, first = found.token(), found.claims()
    now = [first.issued_at + 1.0]
    client = KubeClient.from_kubeconfig(str(folder / "kubeconfig"))
    renewal = TokenRenewal(client, found, namespace=SYSTEM_NAMESPACE, clock=lambda: now[0])
    renewal.look()
    assert found.token() == before
    with pytest.raises(NotFound):
        admin.get(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, invitation_name("renewed-1"))

    now[0] = first.issued_at + first.life_s / 3 + 1
    renewal.look()
    assert found.token() != before
    assert stat.S_IMODE(found.token_file.stat().st_mode) == 0o600
    renewed = KubeClient.from_kubeconfig(str(folder / "kubeconfig"))
    allowed(lambda: report(renewed, "renewed-1"))

    assert herdsman("revoke", "renewed-1")[0] == 0
    now[0] = found.claims().issued_at + found.claims().life_s / 2
    kept = found.token()
    assert renewal.look() <= 30.0
    assert found.token() == kept


def test_names_and_accounts_that_an_invitation_must_not_take(
    admin: KubeClient, herdsman: Herdsman, invited: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, told in (("default", "all its pods"), ("herdsman", "Herdsman itself"), ("herdsman-gateway", "Herdsman")):
        code, _, err = herdsman("invite", name)
        assert code == 64 and told in err
    made = {"metadata": {"name": "by-hand"}}
    admin.create(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, made)
    try:
        for command in ("invite", "revoke"):
            code, _, err = herdsman(command, "by-hand")
            assert code == 1 and "`by-hand`" in err and "herdsman host invite" in err
        admin.get(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, "by-hand")
    finally:
        admin.delete(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, "by-hand")
    body = host_identity.host_objects("bound-1")[1][2]
    body["metadata"] = {"name": "bound-by-hand"}
    admin.create(kinds.CLUSTER_ROLE_BINDINGS, None, body)
    try:
        code, _, err = herdsman("invite", "bound-1")
        assert code == 1 and "ClusterRoleBinding `bound-by-hand`" in err
    finally:
        admin.delete(kinds.CLUSTER_ROLE_BINDINGS, None, "bound-by-hand")
    first = decoded(invited("taken-1"))
    code, _, err = herdsman("invite", "taken-1")
    assert code == 1 and "has an identity already" in err and "--again" in err
    uids = {
        name: admin.get(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, name)["metadata"]["uid"]
        for name in ("taken-1", invitation_name("taken-1"))
    }
    # This test asks for no token of the earlier accounts, so it does not wait until the API server forgets them.
    monkeypatch.setattr(host_invite, "FORGET_S", 0.0)
    assert decoded(invited("taken-1", "--again")).token != first.token
    for name, uid in uids.items():
        assert admin.get(kinds.SERVICE_ACCOUNTS, SYSTEM_NAMESPACE, name)["metadata"]["uid"] != uid
