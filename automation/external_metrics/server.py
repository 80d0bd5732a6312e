"""Answers the requests of the aggregation layer over TLS. Only the API server may connect: see `front_proxy`."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import cast

from agent.http_server import BoundedHandler, BoundedServer, Bounds
from automation.certificates.files import serving_context
from automation.external_metrics import answers
from automation.external_metrics.front_proxy import FrontProxy, Reviewer
from components.scaling import REQUESTS_METRIC
from kubeapi.errors import KubeError
from program.desired.keys import ServiceKey

BOUNDS = Bounds(connections=256, per_client=256, idle_s=120.0)
"""The API servers are the only clients, and send no bodies. They close idle connections after 90 s."""

Values = Callable[[str, Callable[[ServiceKey], bool]], Mapping[ServiceKey, int]]
"""Returns the requests under way of the services of a namespace for which the function is true."""


class MetricsServer(BoundedServer):
    """The listening socket and its threads. Raises OSError when the port is taken."""

    def __init__(self, address: tuple[str, int], values: Values, reviewer: Reviewer) -> None:
        self.values = values
        self.reviewer = reviewer
        self.front_proxy: FrontProxy | None = None
        self._context: ssl.SSLContext | None = None
        super().__init__(address, _Handler, name="external-metrics", bounds=BOUNDS, tls=self._current_context)

    def trust(self, files: Mapping[str, bytes], front_proxy: FrontProxy) -> None:
        """Serve new connections with this certificate, to clients that this front proxy's authority certifies.

        Raises ValueError for an authority that is no certificate.
        """
        context = serving_context(files)
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=front_proxy.authority)
        except ssl.SSLError as error:
            raise ValueError(f"the authority of the API server's certificate is not PEM: {error}") from None
        self.front_proxy = front_proxy
        self._context = context

    def _current_context(self) -> ssl.SSLContext:
        if self._context is None:
            raise ConnectionAbortedError("the authority of the API server is not known yet")
        return self._context


class _Handler(BoundedHandler):
    server: MetricsServer

    def do_GET(self) -> None:  # noqa: N802 - the name that the base class calls
        status, body = self._result()
        if status is HTTPStatus.UNAUTHORIZED:
            self.close_connection = True
        self.answer(status, body, "application/json")

    def _result(self) -> tuple[HTTPStatus, bytes]:
        front = self.server.front_proxy
        certificate = cast(ssl.SSLSocket, self.connection).getpeercert()
        if front is None or not certificate or not front.admits(certificate):
            return _failed(HTTPStatus.UNAUTHORIZED, "the client certificate is not that of the API server")
        caller = front.caller(self.headers)
        if caller is None:
            return _failed(HTTPStatus.UNAUTHORIZED, "the request names no user")
        try:
            question = answers.read(self.path)
        except LookupError as error:
            return _failed(HTTPStatus.NOT_FOUND, str(error.args[0]))
        except answers.SelectorInvalid as error:
            return _failed(HTTPStatus.BAD_REQUEST, str(error))
        if question is None:
            # The metric has no secret, and the API server has checked that the user may read discovery.
            return HTTPStatus.OK, json.dumps(answers.resource_list()).encode()
        try:
            allowed = self.server.reviewer.may_read(caller, question.namespace)
        except KubeError as error:
            return _failed(HTTPStatus.SERVICE_UNAVAILABLE, f"cannot ask what the user may read: {error}")
        if not allowed:
            why = f"user `{caller.name[:200]}` may not list {REQUESTS_METRIC} in `{question.namespace[:200]}`"
            return _failed(HTTPStatus.FORBIDDEN, why)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        values = self.server.values(question.namespace, question.wants)
        return HTTPStatus.OK, json.dumps(answers.value_list(values, now=now)).encode()


def _failed(status: HTTPStatus, message: str) -> tuple[HTTPStatus, bytes]:
    return status, answers.failure(status, message)
