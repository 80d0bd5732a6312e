"""The certificate of the agent's API: read anew when its files change, made by the agent where nobody gave one.

Used by `api_listeners`; `http_server` asks for the context at each connection: rotation takes
no restart, and connections that are open go on.
"""

from __future__ import annotations

import hashlib
import ipaddress
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

RENEW_BEFORE_S = 60 * 86400.0
"""A certificate of the agent's own is replaced when less than this is left of it."""
CHECK_S = 3600.0
"""How often it is looked at for that, at most."""
CERTIFICATE_FILE = "agent-tls.crt"
KEY_FILE = "agent-tls.key"

_log = structlog.get_logger(__name__)


class TlsFailed(Exception):
    """There is no usable certificate; the message names the file and what is wrong."""


@dataclass(frozen=True)
class OwnCertificate:
    """A certificate that the agent makes and renews itself, in its store."""

    directory: Path
    names: tuple[str, ...]
    """Host names and IP addresses that it is for."""

    @property
    def certificate(self) -> Path:
        return self.directory / CERTIFICATE_FILE

    @property
    def key(self) -> Path:
        return self.directory / KEY_FILE

    def ensure(self, *, now: float | None = None) -> bool:
        """Make it where there is none, where it ends soon or is for other names; True when it was made.

        Raises TlsFailed.
        """
        if self.key.exists() and self._is_good(time.time() if now is None else now):
            return False
        argv = [sys.executable, "-m", "agent.server.api.self_signed", str(self.certificate), str(self.key), *self.names]
        try:
            made = subprocess.run(argv, capture_output=True, timeout=60.0, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TlsFailed(f"could not make a certificate in {self.directory}: {error}") from error
        if made.returncode != 0:
            words = made.stderr.decode("utf-8", "replace").strip().splitlines()
            raise TlsFailed(f"could not make a certificate in {self.directory}: {words[-1] if words else 'no reason'}")
        return True

    def _is_good(self, now: float) -> bool:
        # The certificate is its own authority, so the standard library can read it; others it cannot.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cafile=self.certificate)
            (known,) = context.get_ca_certs()
            ends = ssl.cert_time_to_seconds(str(known["notAfter"]))
        except (OSError, ValueError, KeyError):
            return False
        named = {str(entry[1]) for entry in known.get("subjectAltName", ())}
        return ends - now > RENEW_BEFORE_S and {_written(name) for name in self.names} == {_written(n) for n in named}


def _written(name: str) -> str:
    # OpenSSL writes an IPv6 address its own way.
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name.lower()


class Certificate:
    """What the server shows. Safe for use by many threads."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        own: OwnCertificate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read both files at once. Raises TlsFailed."""
        self._certificate, self._key, self._own, self._clock = certificate, key, own, clock
        self._lock = threading.Lock()
        self._checked = clock()
        if own is not None:
            own.ensure()
        self._signature = self._look()
        self._context, self.fingerprint = self._read()

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None, own: OwnCertificate) -> Certificate:
        """Take the files that somebody gave, else the agent's own. Raises TlsFailed."""
        if certificate is not None and key is not None:
            return cls(certificate, key)
        return cls(own.certificate, own.key, own=own)

    def context(self) -> ssl.SSLContext:
        """Give the context for the next connection; the last good one where the files are wrong now."""
        with self._lock:
            self._renew()
            try:
                signature = self._look()
                if signature != self._signature:
                    # Also of one that is wrong: it is tried again when the files change again.
                    self._signature = signature
                    self._context, self.fingerprint = self._read()
                    _log.info("Read the API's new certificate", fingerprint=self.fingerprint)
            except TlsFailed as error:
                _log.warning("Failed to read the API's new certificate; the last one goes on", error=str(error))
            return self._context

    def _renew(self) -> None:
        if self._own is None or self._clock() - self._checked < CHECK_S:
            return
        self._checked = self._clock()
        try:
            if self._own.ensure():
                _log.warning("Renewed the API's own certificate: clients that pin the last one must learn the new one")
        except TlsFailed as error:
            _log.warning("Failed to renew the API's certificate", error=str(error))

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        try:
            found = [path.stat() for path in (self._certificate, self._key)]
        except OSError as error:
            raise TlsFailed(f"cannot read {error.filename}: {error.strerror}") from error
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def _read(self) -> tuple[ssl.SSLContext, str]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
            return context, fingerprint(self._certificate.read_text())
        except ssl.SSLError as error:
            why = "the key does not belong to it" if "KEY_VALUES_MISMATCH" in str(error) else str(error)
            raise TlsFailed(f"{self._certificate} with key {self._key} is no certificate to serve: {why}") from error
        except (OSError, ValueError) as error:
            raise TlsFailed(f"{self._certificate} with key {self._key} cannot be read: {error}") from error


def _no_password() -> str:
    # Otherwise OpenSSL would ask the terminal.
    raise ValueError("the key is encrypted, and an agent has nobody to ask for the password")


def fingerprint(pem: str) -> str:
    """Give the SHA-256 of the first certificate in a PEM text, in lower-case hex. Raises ValueError."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in pem or end not in pem:
        raise ValueError("there is no certificate in it")
    first = pem[pem.index(begin) : pem.index(end) + len(end)]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
