"""How gateway and loop reach the engines of a service: the needed Secrets, and what is taken from them. Pure.

`requirements_of` says which Secrets a service needs, and `access_of` makes keys and a TLS context from their values.
`gateway.cluster` calls them for all requests, `automation.serving.adapters` to load adapters. Clients' keys never reach
an engine; the key here is the engine's own.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from program.dialects.annotation_values import is_name, is_secret_key
from program.dialects.kserve import naming

AUTHORITY, CERTIFICATE = "ca.crt", "tls.crt"
"""The public keys of a Secret of type kubernetes.io/tls."""
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")


class SecretName(NamedTuple):
    """One Secret."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class KeyReference(NamedTuple):
    """The Secret with the key of an engine, and the key of its data."""

    secret: SecretName
    key: str


MOST_KEYS = 4
"""The largest number of keys that are tried at one replica."""
INVALID = KeyReference(SecretName("", ""), "")
"""Stands for a reference that names no Secret. What is written there is not shown: it may be the key itself."""


@dataclass(frozen=True)
class Requirements:
    """The Secrets that the gateway needs for the engines of one service."""

    key: KeyReference | None = None
    """The key that the engines demand."""
    earlier_key: KeyReference | None = None
    """The key before `key`, for replicas that are not replaced yet. Its Secret may be missing."""
    certificates: SecretName | None = None
    """The Secret with the authority of the engines' certificates, if they serve with TLS."""
    server_name: str = ""
    """The DNS name for which the engines' certificates are valid."""

    def secrets(self, *, tls: bool) -> dict[SecretName, frozenset[str]]:
        """Return the needed Secrets with the needed keys of their data. `tls`: the engines serve with TLS."""
        needed: dict[SecretName, frozenset[str]] = {}
        if self.key is not None and self.key != INVALID:
            needed[self.key.secret] = frozenset({self.key.key})
        if self.earlier_key is not None:
            needed[self.earlier_key.secret] = frozenset({self.earlier_key.key})
        if tls and self.certificates is not None:
            public = frozenset({AUTHORITY, CERTIFICATE})
            needed[self.certificates] = needed.get(self.certificates, frozenset()) | public
        return needed


@dataclass(frozen=True)
class SecretValues:
    """What was read of a Secret: only the needed keys of its data."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    previous: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values before the last change."""
    problem: str = ""
    """Why it could not be read; empty when it was."""


@dataclass(frozen=True)
class EngineAccess:
    """How requests reach the engines of one service."""

    tls: ssl.SSLContext | None = field(default=None, compare=False)
    """Verifies the certificates of engines that serve with TLS."""
    trusted: str = field(default="", repr=False)
    """The certificates in PEM that `tls` trusts; empty without `tls`."""
    server_name: str = ""
    """The name that their certificates must have."""
    keys: tuple[str, ...] = field(default=(), repr=False)
    """The key that the engines demand, then those before it, which replicas may still demand; empty: none."""
    problem: str = ""
    """Why no request can be sent; empty when requests are sent."""

    @cached_property
    def authorizations(self) -> tuple[bytes, ...]:
        """The header lines with the keys, in the order in which they are tried."""
        return tuple(f"Authorization: Bearer {key}\r\n".encode() for key in self.keys)


OPEN = EngineAccess()
"""The engines serve without TLS and demand no key."""


def requirements_of(dialect: str, namespace: str, name: str, keys: Sequence[tuple[str, str]]) -> Requirements:
    """Return what the engines of a service require. `keys` is what `engine_keys.keys_of` returned."""
    valid = [
        KeyReference(SecretName(namespace, secret), key) if is_name(secret) and is_secret_key(key) else INVALID
        for secret, key in keys
    ]
    reference, earlier, *_ = [*valid, None, None]
    if dialect != "kserve":
        return Requirements(reference, earlier)
    server_name = f"{naming.workload_service(name)}.{namespace}.svc"
    return Requirements(reference, earlier, SecretName(namespace, naming.certificates(name)), server_name)


def access_of(
    needed: Requirements,
    secrets: Mapping[SecretName, SecretValues],
    *,
    tls: bool,
    before: EngineAccess = OPEN,
) -> EngineAccess:
    """Return how to reach the engines of a service. `tls`: they serve with TLS.

    Without a needed value the result has a `problem`: a request is refused, and not sent without a check of the
    certificate or without the key. `before` is the last result; its context is kept while the certificates stay.
    """
    trusted, problem = "", ""
    keys: tuple[str, ...] = ()
    if needed.key is not None:
        keys, problem = _keys(needed.key, needed.earlier_key, secrets, before)
    if tls and not problem:
        trusted, problem = _trusted(needed, secrets)
    if problem:
        return EngineAccess(problem=problem)
    if not tls:
        return EngineAccess(keys=keys)
    context = before.tls if before.trusted == trusted else None
    try:
        return EngineAccess(context or verifying_context(trusted), trusted, needed.server_name, keys)
    except ssl.SSLError:
        return EngineAccess(problem="the Secret with the certificate of its engine has no valid certificate")


def _keys(
    reference: KeyReference,
    earlier: KeyReference | None,
    secrets: Mapping[SecretName, SecretValues],
    before: EngineAccess,
) -> tuple[tuple[str, ...], str]:
    """Return the keys to try, and why there is none.

    A replica takes a new key only when it is replaced, so the earlier keys are kept: the key of the last generation,
    the last value of the Secret, and the keys that were known when the reference changed.
    """
    key, problem = _key(reference, secrets)
    found = [key] if key else []
    if earlier is not None and (last := _key(earlier, secrets)[0]):
        found.append(last)  # a new Secret may not be there yet
    if not found:
        return (), problem
    replaced = secrets.get(reference.secret, _UNREAD).previous.get(reference.key, "").strip()
    found += [each for each in (replaced, *before.keys) if _KEY.fullmatch(each)]
    return tuple(dict.fromkeys(found))[:MOST_KEYS], ""


def _key(reference: KeyReference, secrets: Mapping[SecretName, SecretValues]) -> tuple[str, str]:
    if reference == INVALID:
        return "", "the reference to the key of its engine is neither the name of a Secret nor `secret/key`"
    found = secrets.get(reference.secret, _UNREAD)
    if found.problem:
        return "", f"the Secret with the key of its engine {found.problem}"
    key = found.values.get(reference.key, "").strip()
    if not _KEY.fullmatch(key):
        return "", "the Secret with the key of its engine has no valid key"
    return key, ""


def _trusted(needed: Requirements, secrets: Mapping[SecretName, SecretValues]) -> tuple[str, str]:
    if needed.certificates is None:
        return "", "its engine serves with TLS, and no authority is known for its certificate"
    found = secrets.get(needed.certificates, _UNREAD)
    if found.problem:
        return "", f"the Secret with the certificate of its engine {found.problem}"
    # During a rotation some replicas still show the certificate before the last change.
    texts = (each.get(part, "") for each in (found.values, found.previous) for part in (AUTHORITY, CERTIFICATE))
    return "\n".join(text for text in texts if text), ""


def verifying_context(bundle: str) -> ssl.SSLContext:
    """Return a client's context that trusts these certificates in PEM and no other. Raises SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A certificate without an authority, as KServe makes it, is trusted itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not bundle.isascii() or not bundle:
        raise ssl.SSLError("no certificate")
    context.load_verify_locations(cadata=bundle)
    return context


_UNREAD = SecretValues(problem="was not read yet")
