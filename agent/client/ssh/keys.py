"""Reads known_hosts: the public keys of a host. Without I/O; used by `target` and `session`."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

KEY_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)


class KnownHostsInvalid(ValueError):
    """A line is not a host key."""


@dataclass(frozen=True)
class HostKey:
    """A public key as SSH sends it."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` shows it."""
        return fingerprint(self.blob)


@dataclass(frozen=True)
class KnownHosts:
    """The keys that are accepted for a host, and the revoked ones."""

    keys: tuple[HostKey, ...] = ()
    revoked: tuple[HostKey, ...] = ()


def fingerprint(blob: bytes) -> str:
    """Return the SHA-256 fingerprint of a public key, as OpenSSH shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def own_keys(lines: Iterable[str]) -> KnownHosts:
    """Parse lines for one host: lines of known_hosts, whose names are ignored, or `type base64`.

    Raises KnownHostsInvalid for any other line, or if there is no key.
    """
    keys: list[HostKey] = []
    revoked: list[HostKey] = []
    for line in lines:
        parsed = _parse(line)
        if parsed is None:
            continue
        marker, _, key = parsed
        (revoked if marker == "@revoked" else keys).append(key)
    if not keys:
        raise KnownHostsInvalid("no host key is given")
    return KnownHosts(tuple(keys), tuple(revoked))


def keys_in_file(text: str, address: str, port: int) -> KnownHosts:
    """Return the keys of a host in the text of a known_hosts file, including hashed names.

    Ignores invalid lines, as OpenSSH does. Raises KnownHostsInvalid if no line matches the host.
    """
    name = address.lower() if port == 22 else f"[{address.lower()}]:{port}"
    keys: list[HostKey] = []
    revoked: list[HostKey] = []
    for line in text.splitlines():
        try:
            parsed = _parse(line)
        except KnownHostsInvalid:
            continue
        if parsed is not None and _is_named(parsed[1], name):
            (revoked if parsed[0] == "@revoked" else keys).append(parsed[2])
    if not keys:
        raise KnownHostsInvalid(f"it has no key of `{name}`")
    return KnownHosts(tuple(keys), tuple(revoked))


def _parse(line: str) -> tuple[str, str, HostKey] | None:
    """Return marker, names and key of a line, or None for a comment."""
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker = ""
    if words[0].startswith("@"):
        marker, *words = words
        if marker != "@revoked":
            raise KnownHostsInvalid(f"`{marker}` is not supported: list the host's own keys")
    names = "" if words and words[0] in KEY_TYPES else words.pop(0) if words else ""
    if len(words) < 2 or words[0] not in KEY_TYPES:
        raise KnownHostsInvalid(f"`{_short(line)}` is not a host key; `ssh-keyscan` prints keys in the right format")
    try:
        blob = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        raise KnownHostsInvalid(f"`{_short(line)}` is not a host key: it is not base64") from None
    if not blob.startswith(len(words[0]).to_bytes(4, "big") + words[0].encode()):
        raise KnownHostsInvalid(f"`{_short(line)}` is not a key of type {words[0]}")
    return marker, names, HostKey(words[0], blob)


def _is_named(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        try:
            _, _, salt, digest = names.split("|")
            expected = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
            return hmac.compare_digest(expected, base64.b64decode(digest))
        except (ValueError, binascii.Error):
            return False
    matched = False
    for pattern in names.lower().split(","):
        # Brackets are literal here, not a character class.
        glob = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name, glob):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched


def _short(line: str) -> str:
    return line.strip() if len(line.strip()) <= 60 else f"{line.strip()[:57]}…"
