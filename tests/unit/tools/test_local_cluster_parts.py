"""The parts of the local cluster that need no cluster: files, ports, certificates, command lines."""

from __future__ import annotations

import base64
import json
import socket
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from tools.localcluster import LocalCluster, certificates, components, default_directory
from tools.localcluster.layout import PORT_NAMES, Layout, ProcessRecord, State, is_free, pick_ports, write_private
from tools.versions import CONTROL_PLANE

PORTS = {name: 20000 + number for number, name in enumerate(PORT_NAMES)}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    state = State(ports={"etcd": 20001}, processes={"etcd": ProcessRecord(4711, 1795258048.28)})
    state.write(tmp_path / "state.json")
    assert State.read(tmp_path / "state.json") == state
    assert mode(tmp_path / "state.json") == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ports": {"etcd": "x"}, "processes": {}}', '{"ports": null}'])
def test_a_state_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert State.read(tmp_path / "state.json") == State()


def test_a_private_file_is_replaced_whole_and_never_readable_by_others(tmp_path: Path) -> None:
    target = tmp_path / "kubeconfig"
    target.write_text("old")
    target.chmod(0o644)
    write_private(target, "new")
    assert (target.read_text(), mode(target)) == ("new", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kubeconfig"]


def test_ports_are_all_different_free_and_outside_the_ranges_of_others() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not is_free(taken.getsockname()[1])
    chosen = pick_ports(PORT_NAMES)
    assert len(set(chosen.values())) == len(PORT_NAMES)
    assert all(20000 <= port < 28000 for port in chosen.values())
    assert not set(chosen.values()) & set(pick_ports(["another"], taken=chosen.values()).values())


def test_purge_removes_what_a_cluster_wrote_and_nothing_else(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "cluster")
    for folder in (layout.pki, layout.data, layout.logs):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    layout.kubeconfig.write_text("x")
    (layout.directory / "my-notes").write_text("keep")
    layout.purge()
    assert [entry.name for entry in layout.directory.iterdir()] == ["my-notes"]
    (layout.directory / "my-notes").unlink()
    layout.purge()
    assert not layout.directory.exists()


def test_the_default_directory_follows_the_xdg_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "herdsman" / "cluster"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".local" / "state" / "herdsman" / "cluster"


def test_a_component_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kube-proxy"):
        LocalCluster(tmp_path, components=["etcd", "kube-proxy"])


def test_a_cluster_that_was_never_up_is_down_and_leaves_no_files(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "none")
    assert cluster.status().state == "down"
    assert cluster.down(purge=True) == ()
    assert not (tmp_path / "none").exists()


def certificate(directory: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((directory / f"{name}.crt").read_bytes())


def test_the_certificates_are_signed_by_the_authority_that_their_reader_trusts(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    assert certificates.ensure(pki)
    signed_by = {
        "ca": ["server", *certificates.CLIENTS],
        "etcd-ca": ["etcd", "etcd-client"],
        "front-proxy-ca": ["front-proxy"],
    }
    for authority, names in signed_by.items():
        for name in names:
            certificate(pki, name).verify_directly_issued_by(certificate(pki, authority))
    with pytest.raises(ValueError, match="does not match"):
        certificate(pki, certificates.ADMIN).verify_directly_issued_by(certificate(pki, "etcd-ca"))
    assert mode(pki) == 0o700
    assert {mode(file) for file in pki.iterdir()} == {0o600}
    assert {file.name for file in pki.iterdir()} == set(certificates.FILES)


def test_the_certificates_are_made_once_and_again_only_when_some_are_missing(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    certificates.ensure(pki)
    first = (pki / "ca.crt").read_text()
    assert not certificates.ensure(pki)
    assert (pki / "ca.crt").read_text() == first
    (pki / "front-proxy.key").unlink()
    assert certificates.ensure(pki)
    assert (pki / "ca.crt").read_text() != first
    certificate(pki, "server").verify_directly_issued_by(certificate(pki, "ca"))


def test_a_client_certificate_carries_its_user_and_groups(tmp_path: Path) -> None:
    certificates.ensure(tmp_path / "pki")
    pair = certificates.issue_client(tmp_path / "pki", user="jane", groups=["viewers", "qa"])
    issued = x509.load_pem_x509_certificate(pair.certificate.encode())
    issued.verify_directly_issued_by(certificate(tmp_path / "pki", "ca"))
    assert [entry.value for entry in issued.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["jane"]
    assert [entry.value for entry in issued.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == [
        "viewers",
        "qa",
    ]


@pytest.mark.parametrize("component", CONTROL_PLANE)
def test_every_component_listens_on_loopback_only_and_with_tls(component: str, tmp_path: Path) -> None:
    arguments = components.arguments(component, Layout(tmp_path), PORTS)
    joined = " ".join(arguments)
    assert "0.0.0.0" not in joined
    assert "http://" not in joined
    assert f"{PORTS[component]}" in joined
    assert "127.0.0.1" in joined
    assert any(argument.endswith((".crt", ".kubeconfig")) for argument in arguments)
    # By its directory a process is recognised as one of this cluster.
    assert str(tmp_path) in joined


def test_a_kubeconfig_holds_all_that_a_client_needs() -> None:
    pair = certificates.Pair("CERTIFICATE", "KEY")
    config = json.loads(components.kubeconfig(server="https://127.0.0.1:1", authority="CA", pair=pair, user="jane"))
    assert config["current-context"] == config["contexts"][0]["name"]
    assert config["contexts"][0]["context"] == {"cluster": "herdsman", "user": "jane"}
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(config["users"][0]["user"]["client-key-data"]) == b"KEY"
