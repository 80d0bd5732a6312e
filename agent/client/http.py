"""Client of an agent's HTTP API, `agent.server.api.http_api`.

Called by `components.providers.host_transports` and `herdsman logs`. Converts errors of urllib3 to those of
`agent.client.port`.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

from agent.client.port import HostRefused, HostUnreachable, ProcessNotFound, ProcessState
from agent.contract import HostPlan, HostReport, LogPiece, ProcessPlan, ProcessReport
from agent.token_proof import SCHEME, proof
from program.desired.web_address import AddressInvalid, WebAddress, shown

TIMEOUT_S = 30.0


def token_from(path: Path) -> Callable[[], str]:
    """Return a function that reads the token from the file each time, so that a new token takes effect."""
    return lambda: path.expanduser().read_text().strip()


class HttpHost:
    """One host, reached by the URL of its agent. Thread-safe."""

    def __init__(
        self,
        endpoint: str,
        token: Callable[[], str],
        *,
        ca_file: Path | None = None,
        fingerprint: str = "",
        timeout_s: float = TIMEOUT_S,
        keep_token: bool = False,
    ) -> None:
        """`endpoint` is `https://address:port`, or `http://…` for loopback only, because each request contains a token.

        `ca_file` contains the trusted authorities, or the agent's own certificate; without it the system's authorities
        are trusted. `fingerprint`, the SHA-256 of the certificate in hex, pins the certificate instead. `keep_token` is
        for an endpoint that comes from another source: each request then contains a proof of the token instead of the
        token. It requires the fingerprint. Raises HostRefused.
        """
        if keep_token and not (fingerprint and endpoint.startswith("https://")):
            why = f"`{endpoint}` has neither https:// nor a fingerprint, so the client cannot send a proof of the token"
            raise HostRefused("NotPrivate", why)
        self._proven_to = fingerprint if keep_token else ""
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._timeout = urllib3.Timeout(timeout_s)
        self._pool = _pool(self._endpoint, ca_file, fingerprint)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def plan(self) -> HostPlan:
        return HostPlan.model_validate(self._request("GET", "/v1/plan"))

    def report(self) -> HostReport:
        return HostReport.model_validate(self._request("GET", "/v1/report"))

    def get(self, key: str) -> ProcessState:
        return _state(self._request("GET", f"/v1/processes/{key}"))

    def put(self, key: str, plan: ProcessPlan) -> ProcessState:
        body = plan.model_dump(mode="json", by_alias=True)
        return _state(self._request("PUT", f"/v1/processes/{key}", body))

    def delete(self, key: str) -> None:
        try:
            self._request("DELETE", f"/v1/processes/{key}")
        except ProcessNotFound:
            return

    def log(self, key: str, *, tail: int | None = None, offset: int | None = None, previous: bool = False) -> LogPiece:
        """Read the last `tail` lines of a process's log, or the text after `offset`. Raises ProcessNotFound."""
        asked = {"tail": tail, "offset": offset, "previous": "true" if previous else None}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return LogPiece.model_validate(self._request("GET", f"/v1/processes/{key}/logs?{query}"))

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        url = self._endpoint + path
        try:
            headers = {"Authorization": self._authorization(method, path), "Content-Type": "application/json"}
        except OSError as error:
            raise HostRefused("TokenMissing", f"cannot read the token: {error}") from error
        try:
            answer = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=self._timeout,
                retries=False,
                redirect=False,
            )
        except urllib3.exceptions.SSLError as error:
            raise HostUnreachable("Untrusted", f"{method} {url}: {_tls_words(error)}") from error
        except urllib3.exceptions.HTTPError as error:
            raise HostUnreachable("Unreachable", f"{method} {url}: {error}") from error
        except OSError as error:
            # urllib3 loads the CA file at the first connection.
            raise HostRefused("CaFileInvalid", f"{method} {url}: the CA file cannot be used: {error}") from error
        if answer.status < 300:
            try:
                return json.loads(answer.data)
            except ValueError as error:
                raise HostUnreachable("NotAnAgent", f"{method} {url}: the answer is not JSON") from error
        reason, message = _error_of(answer.data)
        if answer.status == 404 and reason == "NotFound":
            raise ProcessNotFound(reason, message)
        if answer.status >= 500:
            raise HostUnreachable(reason, f"{method} {url}: {answer.status} {message}")
        raise HostRefused(reason, message)

    def _authorization(self, method: str, path: str) -> str:
        token = self._token()
        if not self._proven_to:
            return f"Bearer {token}"
        return f"{SCHEME} {proof(token, fingerprint=self._proven_to, method=method, path=path)}"


def _pool(endpoint: str, ca_file: Path | None, fingerprint: str) -> urllib3.PoolManager:
    try:
        # The checks below and urllib3 must use the same address, because urllib3 sends the token to it.
        address = WebAddress.parse(endpoint)
    except AddressInvalid as error:
        raise HostRefused(
            "NotPrivate",
            f"`{shown(endpoint)}` is not an https:// URL of an agent: it {error}; write https://address:port",
        ) from None
    if address.scheme == "http" and _is_loopback(address.host):
        return urllib3.PoolManager(maxsize=4)
    if address.scheme != "https":
        raise HostRefused(
            "NotPrivate",
            f"`{endpoint}` is not an https:// URL, so others could read the token; start the agent with "
            f"--http-address, which uses TLS",
        )
    if fingerprint:
        digits = fingerprint.replace(":", "").lower()
        if not re.fullmatch(r"[0-9a-f]{64}", digits):
            raise HostRefused("FingerprintInvalid", "a fingerprint is the certificate's SHA-256: 64 hexadecimal digits")
        # The pinned fingerprint replaces the checks of name and authority.
        return urllib3.PoolManager(maxsize=4, cert_reqs="CERT_NONE", assert_fingerprint=digits, assert_hostname=False)
    authorities = str(ca_file.expanduser()) if ca_file is not None else None
    return urllib3.PoolManager(maxsize=4, cert_reqs="CERT_REQUIRED", ca_certs=authorities)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _tls_words(error: Exception) -> str:
    if "ingerprint" in str(error):
        return (
            f"the certificate differs from the pinned one; check whether it was renewed, or another machine answers "
            f"({error})"
        )
    return f"the certificate is not trusted: {error}; give the agent's certificate as CA file, or pin its fingerprint"


def _state(value: Any) -> ProcessState:
    plan = ProcessPlan.model_validate(value["plan"]) if value["plan"] is not None else None
    return ProcessState(plan, ProcessReport.model_validate(value["report"]), int(value["generation"]))


def _error_of(data: bytes) -> tuple[str, str]:
    try:
        told = json.loads(data)
        return str(told["reason"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        return "Refused", data.decode("utf-8", "replace").strip()[:300]
