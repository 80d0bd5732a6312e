r"""Parses the addresses that models are fetched from, once, so that all checks and the connection use the same reading.

Used by the dialects (a custom resource's field), by policies, by the agent (credentials, connections) and by the
transport over SSH. Parsers of URLs disagree on addresses such as `https://a\@b/`: one reads host `a`, another host
`b`. A WebAddress has only one reading, because `parse` refuses everything that parsers disagree on. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote, urljoin

Scheme = Literal["http", "https"]

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?", re.DOTALL)
_NAME = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_IN_PATHS = "/:@!$&'()*+,;=~%"
_IN_QUERIES = _IN_PATHS + "?"
_LONGEST_NAME = 253


class AddressInvalid(ValueError):
    """An address that Herdsman refuses to fetch. The message has the error and no part that may be secret."""


@dataclass(frozen=True)
class WebAddress:
    """The parts of an http or https address."""

    text: str = field(repr=False)
    """The address as it was written."""
    scheme: Scheme
    host: str
    """A name or an IP address, in lower case, without brackets and without a dot at the end."""
    port: int | None
    """None if the address has no port."""
    path: str
    """The path as it was written; `/` if there is none."""
    query: str = field(repr=False)
    """The text after `?`, or empty."""

    @classmethod
    def parse(cls, text: str) -> WebAddress:
        """Read an address. Raises AddressInvalid."""
        check_characters(text)
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise AddressInvalid("is not a URL")
        scheme = match["scheme"].lower()
        if scheme not in ("http", "https"):
            raise AddressInvalid(f"has scheme `{scheme[:32]}`; only http and https are fetched from")
        host, port = read_authority(match["authority"])
        before, _, _ = match["rest"].partition("#")
        path, _, query = before.partition("?")
        # Clients remove `..` before they send a path, so a pattern could match the text and not the path that is
        # fetched.
        if any(part in (".", "..") for part in re.split(r"[/\\]", unquote(path))):
            raise AddressInvalid("has `.` or `..` in its path; write the path without them")
        return cls(text, "https" if scheme == "https" else "http", host, port, path or "/", query)

    @property
    def effective_port(self) -> int:
        """The port to connect to."""
        return self.port or (443 if self.scheme == "https" else 80)

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port. Two addresses with the same origin are on the same server."""
        return self.scheme, self.host, self.effective_port

    @property
    def authority(self) -> str:
        """Host and port in the format of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """Path and query in the format of a request line; other characters are percent-encoded."""
        return _encoded(self.path, _IN_PATHS) + (f"?{_encoded(self.query, _IN_QUERIES)}" if self.query else "")

    @property
    def sent(self) -> str:
        """The address in ASCII without its fragment, for a client that parses it again."""
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def shown(self) -> str:
        """The address for messages: without the query, which may be a signature."""
        return f"{self.scheme}://{self.authority}{self.path if self.path != '/' else ''}"

    def redirected(self, location: str) -> WebAddress:
        """Read the Location header of a response from this address. Raises AddressInvalid as `parse` does."""
        location = re.sub(r"[ \x80-\xff]", lambda found: quote(found[0], encoding="latin-1"), location.strip(" \t"))
        check_characters(location)
        try:
            return self.parse(urljoin(self.sent, location))
        except AddressInvalid:
            raise
        except ValueError:
            raise AddressInvalid("is not a URL") from None


def read_authority(authority: str) -> tuple[str, int | None]:
    """Read `host[:port]`. Raises AddressInvalid for userinfo, an invalid host and an invalid port."""
    if "@" in authority:
        raise AddressInvalid("has a user or a password in front of its host; leave them out")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise AddressInvalid("has a host that is neither a name nor an IP address")
    host, port = match["host"].lower(), match["port"]
    if not host:
        raise AddressInvalid("has no host")
    if port is not None and (not _PORT.fullmatch(port) or int(port) > 65535):
        raise AddressInvalid("is not a URL: its port is not a number from 1 to 65535")
    if host.startswith("["):
        try:
            host = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise AddressInvalid("has brackets around a text that is not an IPv6 address") from None
        if "%" in host:
            raise AddressInvalid(
                "has an IPv6 address with a zone, whose meaning differs from machine to machine; leave the zone out"
            )
    elif not _NAME.fullmatch(host) or len(host.rstrip(".")) > _LONGEST_NAME:
        raise AddressInvalid(
            "has a host that is not a name of ASCII letters, digits, `-`, `_` and `.`; write other letters in "
            "Punycode (`xn--…`)"
        )
    return host.removesuffix("."), None if port is None else int(port)


def check_characters(text: str) -> None:
    """Refuse the characters that parsers disagree on. Raises AddressInvalid."""
    if "\\" in text:
        raise AddressInvalid("contains a backslash; write `/`")
    # A space is the only white space that counts as printable.
    if " " in text or not text.isprintable():
        raise AddressInvalid("contains white space or control characters")


def shown(address: str) -> str:
    """Return an address of any source without the parts that may be secret: user, password, query, fragment."""
    try:
        return WebAddress.parse(address).shown
    except AddressInvalid:
        before = re.split(r"[?#]", address, maxsplit=1)[0]
        scheme, separator, rest = before.partition("://")
        if not separator:
            return _printable(before)
        # A path may contain `@`, as in `hf://org/repo@revision`; only `@` before the first slash ends a password.
        authority, slash, path = rest.partition("/")
        return _printable(f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}")


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _encoded(text: str, safe: str) -> str:
    return quote(_BARE_PERCENT.sub("%25", text), safe=safe)
