"""The text of an invitation: what is read, and what is refused without showing it."""

from __future__ import annotations

import base64
import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.server.joining.invitation import BEGIN, END, Invitation, InvitationWrong, decoded, encoded, server_fault


def authority() -> str:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


CA = authority()
GOOD = Invitation("https://10.0.0.1:6443", CA, "mac-1", "aaa.bbb.c-c_c", "2030-01-01T00:00:00Z")


def text_of(content: object) -> str:
    return f"{BEGIN}\n{base64.b64encode(json.dumps(content).encode()).decode()}\n{END}\n"


def content(**changes: Any) -> dict[str, Any]:
    return {"version": 1, **dataclasses.asdict(GOOD), **changes}


def test_an_invitation_is_read_as_it_was_written_also_between_other_lines() -> None:
    text = encoded(GOOD)
    assert decoded(text) == GOOD
    assert decoded(f"$ herdsman host invite mac-1\r\n{text}".replace("\n", "\r\n") + "\nbye") == GOOD
    assert max(map(len, text.splitlines())) <= 64, "terminals cut longer lines that are pasted"
    assert GOOD.token not in repr(GOOD) and GOOD.token not in str(GOOD)


WRONG = {
    "another version": content(version=2),
    "a field that runs a program": content(exec={"command": "/bin/sh"}),
    "a proxy": content(proxy="http://203.0.113.9"),
    "no token": {key: value for key, value in content().items() if key != "token"},
    "a token with a line break": content(token="aaa.bbb.ccc\nX-Header: 1"),
    "a number": content(host=1),
    "a host with a path": content(host="../../etc"),
    "plain http": content(server="http://10.0.0.1:8080", ca=""),
    "http with certificates": content(server="http://127.0.0.1:8080"),
    "a user in the URL": content(server="https://me:secret@10.0.0.1"),
    "no certificate": content(ca=""),
    "a certificate that is none": content(ca="-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    "a name with a slash": content(tls_server_name="a/b"),
    "a namespace with a comma at its end": content(namespaces="lab,"),
    "no time": content(expires="soon"),
    "a time without a zone": content(expires="2030-01-01T00:00:00"),
    "a list": [1],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_content_is_refused_without_showing_it(name: str) -> None:
    with pytest.raises(InvitationWrong) as refused:
        decoded(text_of(WRONG[name]))
    assert "aaa.bbb" not in str(refused.value) and "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        BEGIN,
        f"{END}\n{BEGIN}",
        f"{BEGIN}\n!!!\n{END}",
        f"{BEGIN}\n{END}",
        encoded(GOOD)[: len(encoded(GOOD)) // 2],
        encoded(GOOD) + encoded(GOOD),
        "x" * 70_000,
        text_of({}).replace(base64.b64encode(b"{}").decode(), base64.b64encode(b"[" * 9000).decode()),
        f"{BEGIN}\n{base64.b64encode(json.dumps(content())[:-1].encode() + b', 1: 2}').decode()}\n{END}",
        f"{BEGIN}\n{base64.b64encode(json.dumps(content())[:-1].encode() + b', {!r}: 1}}').decode()}\n{END}",
    ],
)
def test_damaged_texts_are_refused(text: str) -> None:
    with pytest.raises(InvitationWrong):
        decoded(text)


def test_a_field_that_occurs_twice_is_refused() -> None:
    twice = json.dumps(content())[:-1] + ', "server": "https://203.0.113.9"}'
    with pytest.raises(InvitationWrong):
        decoded(f"{BEGIN}\n{base64.b64encode(twice.encode()).decode()}\n{END}")


@pytest.mark.parametrize(
    "server", ["https://k.example.org", "https://[::1]:6443", "http://localhost:1", "http://[::1]"]
)
def test_servers_that_an_invitation_may_name(server: str) -> None:
    assert server_fault(server) == ""


@pytest.mark.parametrize("server", ["", "https://", "ftp://a", "http://a", "https://a b", "https://[", "https://a?x=1"])
def test_servers_that_an_invitation_may_not_name(server: str) -> None:
    assert server_fault(server)
