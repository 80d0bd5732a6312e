"""The certificate of the agent's API: read again when its files change, and made by the agent if none is given.

Used by `api_listeners`. `agent.http_server` requests the context for each connection, so rotation needs no
restart and open connections continue.
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
"""The agent replaces a certificate that it made when less than this time remains."""
CHECK_S = 3600.0
"""Shortest interval between two checks of the remaining time."""
CERTIFICATE_FILE = "agent-tls.crt"
KEY_FILE = "agent-tls.key"

_log = structlog.get_logger(__name__)


class TlsFailed(Exception):
    """There is no usable certificate. The message names the file and the problem."""


@dataclass(frozen=True)
class OwnCertificate:
    """A certificate that the agent makes and renews in its store."""

    directory: Path
    names: tuple[str, ...]
    """Host names and IP addresses in the certificate."""

    @property
    def certificate(self) -> Path:
        return self.directory / CERTIFICATE_FILE

    @property
    def key(self) -> Path:
        return self.directory / KEY_FILE

    def ensure(self, *, now: float | None = None) -> bool:
        """Make the certificate if it is missing, ends soon or has other names. Returns True if it was made.

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
        # The certificate signs itself, so the standard library can parse it, unlike other certificates.
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
    # OpenSSL formats IPv6 addresses differently.
    try:
        return str(ipaddress.ip_address(name.strip()))
    except ValueError:
        return name.lower()


class Certificate:
    """The certificate of the server. Thread-safe."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        own: OwnCertificate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read both files immediately. Raises TlsFailed."""
        self._certificate, self._key, self._own, self._clock = certificate, key, own, clock
        self._lock = threading.Lock()
        self._checked = clock()
        if own is not None:
            own.ensure()
        self._signature = self._look()
        self._context, self.fingerprint = self._read()

    @classmethod
    def of(cls, certificate: Path | None, key: Path | None, own: OwnCertificate) -> Certificate:
        """Return the given certificate, else the one that the agent makes. Raises TlsFailed."""
        if certificate is not None and key is not None:
            return cls(certificate, key)
        return cls(own.certificate, own.key, own=own)

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection. If the files are invalid now, it is the last valid one."""
        with self._lock:
            self._renew()
            try:
                signature = self._look()
                if signature != self._signature:
                    # Also stored for invalid files, so that they are tried again only after the next change.
                    self._signature = signature
                    self._context, self.fingerprint = self._read()
                    _log.info("Read the API's new certificate", fingerprint=self.fingerprint)
            except TlsFailed as error:
                _log.warning("Failed to read the API's new certificate; still using the last one", error=str(error))
            return self._context

    def _renew(self) -> None:
        if self._own is None or self._clock() - self._checked < CHECK_S:
            return
        self._checked = self._clock()
        try:
            if self._own.ensure():
                _log.warning("Renewed the API's certificate; clients that pin the last one must pin the new one")
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
            raise TlsFailed(
                f"{self._certificate} with key {self._key} is not a valid server certificate: {why}"
            ) from error
        except (OSError, ValueError) as error:
            raise TlsFailed(f"{self._certificate} with key {self._key} cannot be read: {error}") from error


def _no_password() -> str:
    # Otherwise OpenSSL would ask on the terminal.
    raise ValueError("the key is encrypted with a password, which the agent cannot enter")


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of the first certificate in a PEM text, in lower-case hex. Raises ValueError."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in pem or end not in pem:
        raise ValueError("the file contains no certificate")
    first = pem[pem.index(begin) : pem.index(end) + len(end)]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
