"""The text of an invitation: where the API server is, how to recognize it, and a token that asks for one host's token.

`automation.cli.host_invite` writes it, `automation.cli.host_join` reads it. It has lines of 64 characters between two
marks, because terminals cut longer lines that are pasted. The content is JSON with exactly the fields below.
It is never read as a kubeconfig, which could name programs to run.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
import re
import ssl
import textwrap
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from urllib.parse import urlsplit

BEGIN = "-----BEGIN HERDSMAN INVITATION-----"
END = "-----END HERDSMAN INVITATION-----"
MOST_BYTES = 64 * 1024
_VERSION = 1
_HOST = re.compile(r"[a-z0-9]([-a-z0-9.]{0,48}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")


class InvitationWrong(Exception):
    """A text is no valid invitation. The message does not contain the text."""


@dataclass(frozen=True)
class Invitation:
    """What a machine needs to become a host."""

    server: str
    """URL of the API server: https, or http on loopback."""
    ca: str
    """Certificates in PEM of the only authorities that are trusted; empty with http."""
    host: str
    token: str
    """It may create a token of the host's ServiceAccount, and nothing else."""
    expires: str
    """The end of the token as the API server set it, in RFC 3339."""
    tls_server_name: str = ""
    """The name in the server's certificate, if it is not the host of the URL."""
    namespaces: str = ""
    """The namespaces that the host serves, separated by commas; empty for all."""

    def __repr__(self) -> str:
        return f"Invitation(host={self.host!r}, server={self.server!r})"

    @property
    def served(self) -> tuple[str, ...]:
        """The namespaces that the host serves; empty for all."""
        return tuple(self.namespaces.split(",")) if self.namespaces else ()

    @property
    def ends(self) -> datetime:
        return datetime.fromisoformat(self.expires)


def encoded(invitation: Invitation) -> str:
    """Return the text of an invitation. Raises InvitationWrong."""
    _check(invitation)
    content = json.dumps({"version": _VERSION, **asdict(invitation)}, separators=(",", ":")).encode()
    lines = textwrap.wrap(base64.b64encode(content).decode(), 64)
    return "\n".join((BEGIN, *lines, END)) + "\n"


def decoded(text: str) -> Invitation:
    """Read the text of an invitation; text before and after the marks is skipped. Raises InvitationWrong."""
    if len(text) > MOST_BYTES:
        raise InvitationWrong("the text is longer than any invitation")
    _, begin, rest = text.partition(BEGIN)
    body, end, after = rest.partition(END)
    if not begin or not end:
        raise InvitationWrong(f"the text has no lines `{BEGIN}` and `{END}`: copy all lines")
    if BEGIN in after or BEGIN in body:
        raise InvitationWrong("the text has more than one invitation")
    try:
        content = json.loads(base64.b64decode("".join(body.split()), validate=True), object_pairs_hook=_once)
    except (binascii.Error, ValueError, RecursionError):
        raise InvitationWrong("the text between the marks is damaged: copy all lines") from None
    if not isinstance(content, dict):
        raise InvitationWrong("the text between the marks is no invitation")
    if content.pop("version", None) != _VERSION:
        raise InvitationWrong("another version of Herdsman wrote the invitation: use the same version on both machines")
    if set(content) != {each.name for each in fields(Invitation)}:
        raise InvitationWrong("the invitation has missing or unknown fields")
    if not all(isinstance(value, str) for value in content.values()):
        raise InvitationWrong("a field of the invitation is no text")
    invitation = Invitation(**content)
    _check(invitation)
    return invitation


def server_fault(server: str) -> str:
    """Return why a server's URL cannot be in an invitation; empty if it can."""
    try:
        parts = urlsplit(server)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "it is no URL"
    if not server.isascii() or not server.isprintable() or " " in server:
        return "it has characters that a URL cannot have"
    if parts.username is not None or parts.query or parts.fragment:
        return "it has a user, a query or a fragment"
    if not host:
        return "it has no host"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(server)):
        return ""
    return "it is not https"


def is_loopback(server: str) -> bool:
    """Return whether a URL leads to the machine that uses it."""
    host = urlsplit(server).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_host_name(name: str) -> bool:
    """Return whether a Host can have this name."""
    return bool(_HOST.fullmatch(name))


def _check(invitation: Invitation) -> None:
    if fault := server_fault(invitation.server):
        raise InvitationWrong(f"the URL of the API server cannot be used: {fault}")
    if not is_host_name(invitation.host):
        raise InvitationWrong("the name of the host is invalid")
    if not _TOKEN.fullmatch(invitation.token):
        raise InvitationWrong("the token has another form than tokens of ServiceAccounts")
    if invitation.tls_server_name and not _NAME.fullmatch(invitation.tls_server_name):
        raise InvitationWrong("the server's name for TLS is invalid")
    if not all(_LABEL.fullmatch(each) for each in invitation.served):
        raise InvitationWrong("the name of a namespace is invalid")
    try:
        ends = invitation.ends
    except ValueError:
        raise InvitationWrong("its end is no time") from None
    if ends.tzinfo is None or ends < datetime.fromtimestamp(0, UTC):
        raise InvitationWrong("its end is no time")
    if urlsplit(invitation.server).scheme == "https":
        _check_authorities(invitation.ca)
    elif invitation.ca:
        raise InvitationWrong("it has certificates for a server without TLS")


def _check_authorities(ca: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=ca)
    except (ssl.SSLError, ValueError, TypeError):
        raise InvitationWrong("it has no certificate of the API server's authority") from None
    if not context.cert_store_stats()["x509"]:
        raise InvitationWrong("it has no certificate of the API server's authority")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field occurs twice")
    return found
