"""Talks to an agent's HTTP API; the other end is `agent.server.http_api`.

Called by `components.providers.host_plugin`. Errors of urllib3 become those of `agent.client.port`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import urllib3

from agent.client.port import HostRefused, HostUnreachable, ProcessNotFound, ProcessState
from agent.contract import HostPlan, HostReport, ProcessPlan, ProcessReport

TIMEOUT_S = 30.0


def token_from(path: Path) -> Callable[[], str]:
    """Read the bearer token from a file at each request, so that a new one counts at once."""
    return lambda: path.expanduser().read_text().strip()


class HttpHost:
    """One host behind the URL of its agent. Safe for use by many threads."""

    def __init__(self, endpoint: str, token: Callable[[], str], *, timeout_s: float = TIMEOUT_S) -> None:
        """`endpoint` is `http://address:port` or `https://…`."""
        self._endpoint = endpoint.rstrip("/")
        self._token = token
        self._timeout = urllib3.Timeout(timeout_s)
        self._pool = urllib3.PoolManager(maxsize=4)

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

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        url = self._endpoint + path
        try:
            headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
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
        except urllib3.exceptions.HTTPError as error:
            raise HostUnreachable("Unreachable", f"{method} {url}: {error}") from error
        if answer.status < 300:
            try:
                return json.loads(answer.data)
            except ValueError as error:
                raise HostUnreachable("NotAnAgent", f"{method} {url}: the answer is no JSON") from error
        reason, message = _told(answer.data)
        if answer.status == 404 and reason == "NotFound":
            raise ProcessNotFound(reason, message)
        if answer.status >= 500:
            raise HostUnreachable(reason, f"{method} {url}: {answer.status} {message}")
        raise HostRefused(reason, message)


def _state(value: Any) -> ProcessState:
    plan = ProcessPlan.model_validate(value["plan"]) if value["plan"] is not None else None
    return ProcessState(plan, ProcessReport.model_validate(value["report"]), int(value["generation"]))


def _told(data: bytes) -> tuple[str, str]:
    try:
        told = json.loads(data)
        return str(told["reason"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        return "Refused", data.decode("utf-8", "replace").strip()[:300]
