"""The agent's HTTP API: health and metrics without a token on loopback, plans and reports with the token.

Started by `agent.server.main`; calls the supervisor. In a fleet without a cluster it receives the plans
(`agent.client.http` is its client). For other machines it uses TLS, and all paths but /healthz require a token. Every
response under /v1 is JSON; an error is `{"reason": …, "message": …}`.
"""

from __future__ import annotations

import hmac
import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import parse_qsl

import structlog
from pydantic import ValidationError

from agent.contract import HostFacts, HostPlan, HostReport, ProcessPlan
from agent.http_server import BodyRefused, BoundedHandler, BoundedServer, Bounds, ClientLeft
from agent.server.processes.supervisor import Supervisor
from agent.server.telemetry.metrics import AgentMetrics
from agent.token_proof import SCHEME, proof

BOUNDS = Bounds(body_bytes=1024 * 1024)

_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_PROCESS = re.compile(rf"/v1/processes/(?P<namespace>{_NAME})/(?P<name>{_NAME})")
_LOG = re.compile(rf"{_PROCESS.pattern}/logs")

_log = structlog.get_logger(__name__)


class HttpError(Exception):
    """A request that gets an error response."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class Api:
    """The data and functions behind the responses."""

    supervisor: Supervisor
    metrics: AgentMetrics
    facts: Callable[[], HostFacts]
    token: Callable[[], str]
    """Called at every request, so that a new token is valid without a restart."""
    is_ready: Callable[[], bool]
    takes_plans: bool
    """False: the plan comes from Kubernetes, and writes are refused."""
    metrics_token: Callable[[], str] = str
    """A token that is valid for /metrics only. Empty: there is none."""
    fingerprint: Callable[[], str] = str
    """The SHA-256 of the current certificate, for proofs of the token. Empty: proofs are not accepted."""
    ending: Callable[[Literal["keep", "stop"] | None], str] = lambda _wish: "keep"
    """Sets whether processes keep running after the agent stops, unless the argument is None, and returns
    the setting."""

    def process(self, method: str, key: str, body: bytes) -> tuple[int, Any]:
        """Handle a request for one process. Returns status and JSON value. Raises HttpError."""
        if method == "GET":
            return 200, self._state(key)
        if not self.takes_plans:
            raise HttpError(409, "PlanFromKubernetes", "this host takes its plan from Kubernetes")
        if method == "DELETE":
            state = self._state(key)
            self.supervisor.remove(key)
            return 202, state
        try:
            plan = ProcessPlan.model_validate_json(body)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise HttpError(422, "PlanInvalid", faults) from error
        host = self.facts().host
        if plan.host != host:
            raise HttpError(422, "PlanInvalid", f"host: the plan is for `{plan.host}` and this is `{host}`")
        before = self.supervisor.list_desired().get(key)
        # For a HostProcess Kubernetes counts the generation. Here it is counted, so that `observedGeneration` shows to
        # which plan a report belongs.
        generation = before.generation if before is not None else 0
        self.supervisor.put(key, plan, generation if before is not None and before.plan == plan else generation + 1)
        return (201 if before is None else 200), self._state(key)

    def log(self, key: str, query: str) -> dict[str, Any]:
        """Return a part of a process's log: `tail` lines, or the text after `offset`.

        `previous=true` reads the rotated copy. Raises HttpError.
        """
        asked = dict(parse_qsl(query))
        numbers = {name: asked[name] for name in ("tail", "offset") if name in asked}
        if not all(re.fullmatch(r"[0-9]{1,18}", number) for number in numbers.values()):
            raise HttpError(422, "Invalid", "tail and offset are numbers, from 0")
        wanted = {name: int(number) for name, number in numbers.items()}
        try:
            piece = self.supervisor.log(key, **wanted, previous=asked.get("previous") == "true")
        except OSError as error:
            raise HttpError(500, "LogUnreadable", f"the log of `{key}`: {error.strerror or error}") from error
        if piece is None:
            raise HttpError(404, "NotFound", f"no log of a process `{key}` on this host")
        return piece.model_dump(mode="json", by_alias=True)

    def _state(self, key: str) -> dict[str, Any]:
        desired = self.supervisor.list_desired().get(key)
        report = self.supervisor.reports().get(key)
        if report is None:
            raise HttpError(404, "NotFound", f"no process `{key}` on this host")
        return {
            "plan": desired.plan.model_dump(mode="json", by_alias=True) if desired is not None else None,
            "generation": desired.generation if desired is not None else 0,
            "report": report.model_dump(mode="json", by_alias=True),
        }


class HttpApi:
    """The server. `port` is the port on which it listens."""

    def __init__(
        self, api: Api, *, port: int = 0, address: str = "127.0.0.1", tls: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        """Listen immediately.

        With `tls`, all paths but /healthz require a token. Raises OSError if the port is in use.
        """
        try:
            handler = _handler(api, guarded=tls is not None)
            self._server = BoundedServer((address, port), handler, name="http-api", bounds=BOUNDS, tls=tls)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {address} port {port}: {error.strerror}") from error
        self.port = self._server.server_port

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


def _handler(api: Api, *, guarded: bool) -> type[BoundedHandler]:
    class Handler(BoundedHandler):
        server_version = "herdsman-agent"

        def do_GET(self) -> None:  # noqa: N802 - the base class calls it so
            self._answer("GET")

        def do_PUT(self) -> None:  # noqa: N802 - the base class calls it so
            self._answer("PUT")

        def do_DELETE(self) -> None:  # noqa: N802 - the base class calls it so
            self._answer("DELETE")

        def _answer(self, method: str) -> None:
            path = self.path.partition("?")[0]
            try:
                status, kind, content = self._respond(method, path)
            except HttpError as error:
                told = {"reason": error.reason, "message": error.message}
                status, kind, content = error.status, "application/json", json.dumps(told).encode()
            except ClientLeft:
                self.close_connection = True
                return
            except Exception:
                _log.exception("Failed to answer a request", path=path)
                told = {"reason": "InternalError", "message": "see the agent's log"}
                status, kind, content = 500, "application/json", json.dumps(told).encode()
            self.answer(status, content, kind, {"WWW-Authenticate": "Bearer"} if status == 401 else None)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
            _log.debug("Answered a request", line=format % args)

        def _respond(self, method: str, path: str) -> tuple[int, str, bytes]:
            if method == "GET" and path == "/healthz":
                return 200, "text/plain", b"ok\n"
            if guarded or path not in ("/readyz", "/metrics"):
                self._authorize(method, path)
            if method == "GET" and path == "/readyz":
                return (200, "text/plain", b"ok\n") if api.is_ready() else (503, "text/plain", b"plan not read yet\n")
            if method == "GET" and path == "/metrics":
                return 200, "text/plain; version=0.0.4; charset=utf-8", api.metrics.text()
            status, value = self._value(method, path, self._body())
            return status, "application/json", json.dumps(value).encode()

        def _value(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
            match = _PROCESS.fullmatch(path)
            if match:
                return api.process(method, f"{match['namespace']}/{match['name']}", body)
            match = _LOG.fullmatch(path)
            if match and method == "GET":
                return 200, api.log(f"{match['namespace']}/{match['name']}", self.path.partition("?")[2])
            if path == "/v1/report" and method == "GET":
                report = HostReport(facts=api.facts(), processes=api.supervisor.reports())
                return 200, report.model_dump(mode="json", by_alias=True)
            if path == "/v1/plan" and method == "GET":
                plan = HostPlan(host=api.facts().host, processes=api.supervisor.plans())
                return 200, plan.model_dump(mode="json", by_alias=True)
            if path == "/v1/ending" and method in ("GET", "PUT"):
                return 200, {"processes": api.ending(_wish(body) if method == "PUT" else None)}
            raise HttpError(404, "NotFound", f"this API has no {method} {path}")

        def _authorize(self, method: str, path: str) -> None:
            scheme, _, given = self.headers.get("Authorization", "").partition(" ")
            if scheme.lower() == "bearer":
                if _is_same(given.strip(), api.token()):
                    return
                if _is_same(given.strip(), api.metrics_token()):
                    if (method, path) == ("GET", "/metrics"):
                        return
                    raise HttpError(403, "Forbidden", "this token is valid only for /metrics")
            if scheme.lower() == SCHEME.lower() and self._is_proven(method, given.strip()):
                return
            raise HttpError(401, "Unauthorized", "send the bearer token of the agent's token file")

        def _is_proven(self, method: str, given: str) -> bool:
            token, fingerprint = api.token(), api.fingerprint()
            if not token or not fingerprint:
                return False
            return _is_same(given, proof(token, fingerprint=fingerprint, method=method, path=self.path))

        def _body(self) -> bytes:
            try:
                return self.body()
            except BodyRefused as error:
                reason = "TooLarge" if error.status is HTTPStatus.REQUEST_ENTITY_TOO_LARGE else "LengthRequired"
                raise HttpError(error.status, reason, str(error)) from error

    return Handler


def _is_same(given: str, token: str) -> bool:
    # A token that cannot be read authorizes no request.
    return bool(token) and hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _wish(body: bytes) -> Literal["keep", "stop"]:
    try:
        wish = json.loads(body)["processes"]
    except (ValueError, KeyError, TypeError):
        wish = None
    if wish == "keep":
        return "keep"
    if wish == "stop":
        return "stop"
    raise HttpError(422, "Invalid", 'send {"processes": "keep"} or {"processes": "stop"}')
