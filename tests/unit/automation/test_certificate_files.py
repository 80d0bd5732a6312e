"""The certificates of pods: a client with only `ca.crt` trusts the server with the other files, and no other server."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from automation.certificates.files import LIFETIME, serving_files

NOW = datetime.datetime.now(datetime.UTC)
NAMES = ("svc.ns.svc.cluster.local", "localhost")


def served(files: dict[str, bytes], directory: Path, *, name: str, trust: bytes) -> str:
    """Shake hands with a server that has the files; return the client's result."""
    for file, text in files.items():
        (directory / file).write_bytes(text)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    client = ssl.create_default_context(cadata=trust.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as connection:
                connection.sendall(b"ok")
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as connection:
            return connection.recv(2).decode()
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)
    finally:
        ours.close()
        thread.join(10)


@pytest.mark.parametrize("name", [*NAMES, "127.0.0.1", "::1"])
def test_a_client_with_the_authority_trusts_each_name_and_address(tmp_path: Path, name: str) -> None:
    files = serving_files(NAMES, ("127.0.0.1", "::1"), now=NOW)
    assert served(files, tmp_path, name=name, trust=files["ca.crt"]) == "ok"


def test_another_name_and_another_authority_are_not_trusted(tmp_path: Path) -> None:
    files, other = serving_files(NAMES, (), now=NOW), serving_files(NAMES, (), now=NOW)
    assert "mismatch" in served(files, tmp_path, name="other.ns.svc", trust=files["ca.crt"])
    assert served(files, tmp_path, name=NAMES[0], trust=other["ca.crt"]) != "ok"
    late = serving_files(NAMES, (), now=NOW - LIFETIME - datetime.timedelta(days=1))
    assert "expired" in served(late, tmp_path, name=NAMES[0], trust=late["ca.crt"])


def test_the_certificate_can_sign_nothing_and_its_authority_nothing_below_it() -> None:
    files = serving_files(NAMES, (), now=NOW)
    certificate, authority = (x509.load_pem_x509_certificate(files[file]) for file in ("tls.crt", "ca.crt"))
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    assert certificate.not_valid_after_utc - NOW <= LIFETIME
    assert b"PRIVATE" not in files["ca.crt"] + files["tls.crt"]


def test_names_that_are_too_long_for_a_common_name_are_alternatives_all_the_same() -> None:
    long = f"{'a' * 60}.{'b' * 60}.svc.cluster.local"
    certificate = x509.load_pem_x509_certificate(serving_files((long,), (), now=NOW)["tls.crt"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [long]


@pytest.mark.parametrize(("names", "addresses"), [((), ()), (("a",), ("300.1.1.1",))])
def test_what_cannot_be_certified_is_refused(names: tuple[str, ...], addresses: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        serving_files(names, addresses, now=NOW)
