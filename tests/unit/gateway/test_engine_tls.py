"""Requests to engines that serve with TLS or demand a key of their own."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from automation.certificates.files import serving_files
from gateway.engines.backends import Route
from gateway.engines.questions import models_of
from gateway.names import Model, ServiceName
from program.dialects.engine_access import EngineAccess, verifying_context
from tests.support.gateways import OK, Answer, Engine, Front, says

NAME = "chat-kserve-workload-svc.prod.svc"
LISTED = says("200 OK", b'{"data": [{"id": "org/chat"}]}')


class TlsEngine(Engine):
    """An engine that serves with TLS."""

    def __init__(self, answer: Answer, directory: Path, name: str) -> None:
        files = serving_files((name,), (), now=datetime.datetime.now(datetime.UTC))
        for file, text in files.items():
            (directory / file).write_bytes(text)
        self.trusted = files["ca.crt"].decode()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        super().__init__(answer)

    def _talk(self, connection: socket.socket) -> None:
        with self._context.wrap_socket(connection, server_side=True) as secured:
            super()._talk(secured)


@pytest.fixture
def make_tls_engine(tmp_path: Path) -> Iterator[Callable[..., TlsEngine]]:
    made: list[TlsEngine] = []

    def make(answer: Answer = OK, name: str = NAME) -> TlsEngine:
        made.append(TlsEngine(answer, tmp_path, name))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


Make = Callable[..., TlsEngine]


def access(trusted: str, key: str = "") -> EngineAccess:
    return EngineAccess(verifying_context(trusted), trusted, NAME, (key,) if key else ())


def route(engine: Engine, how: EngineAccess, refusals: list[str] | None = None) -> Route:
    told = None if refusals is None else lambda: refusals.append("refused")
    tls = frozenset({engine.target}) if how.tls else frozenset()
    model = Model(ServiceName("prod", "chat"))
    return Route(model, (engine.target,), tls_targets=tls, access=how, on_refused=told)


def test_a_request_reaches_an_engine_with_tls_and_uses_its_connection_again(
    front: Front, make_tls_engine: Make
) -> None:
    engine = make_tls_engine()
    front.serve_routes(route(engine, access(engine.trusted)))
    assert [front.ask({"model": "chat"})[0] for _ in range(3)] == [200] * 3
    assert engine.connections == 1


def test_an_engine_with_an_untrusted_certificate_gets_nothing(front: Front, make_tls_engine: Make) -> None:
    engine, other = make_tls_engine(), make_tls_engine()
    refusals: list[str] = []
    front.serve_routes(route(engine, access(other.trusted), refusals))
    status, _, told = front.ask({"model": "chat"})
    assert (status, told["error"]["code"]) == (503, "upstream_unreachable")
    assert "certificate verify failed" in told["error"]["message"]
    assert refusals
    assert not engine.seen


def test_an_engine_with_a_certificate_for_another_name_gets_nothing(front: Front, make_tls_engine: Make) -> None:
    engine = make_tls_engine(name="other.prod.svc")
    front.serve_routes(route(engine, access(engine.trusted)))
    assert front.ask({"model": "chat"})[0] == 503
    assert not engine.seen


def test_after_a_rotation_new_connections_trust_the_new_certificate(front: Front, make_tls_engine: Make) -> None:
    before, engine = make_tls_engine(), make_tls_engine()
    front.serve_routes(route(engine, access(before.trusted)))
    assert front.ask({"model": "chat"})[0] == 503
    front.serve_routes(route(engine, access(engine.trusted)))
    assert front.ask({"model": "chat"})[0] == 200


def test_the_engine_gets_its_own_key_and_never_that_of_the_client(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine()
    front.serve_routes(route(engine, EngineAccess(keys=("of-the-engine",))))
    assert front.ask({"model": "chat"}, Authorization="Bearer of-the-client")[0] == 200
    head = engine.seen[0][0]
    assert b"Authorization: Bearer of-the-engine\r\n" in head
    assert b"of-the-client" not in head


def test_an_engine_that_refuses_the_key_is_no_fault_of_the_client(
    front: Front, make_engine: Callable[..., Engine]
) -> None:
    engine = make_engine(says("401 Unauthorized", b"{}"))
    refusals: list[str] = []
    front.serve_routes(route(engine, EngineAccess(keys=("old",)), refusals))
    status, _, told = front.ask({"model": "chat"})
    assert (status, told["error"]["code"], refusals) == (502, "engine_refused_key", ["refused"])
    assert "old" not in told["error"]["message"]


def test_without_its_key_a_request_is_refused(front: Front, make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    front.serve_routes(route(engine, EngineAccess(problem="the Secret with the key of its engine does not exist")))
    status, headers, told = front.ask({"model": "chat"})
    assert (status, told["error"]["code"], headers["retry-after"]) == (503, "engine_not_accessible", "5")
    assert "does not exist" in told["error"]["message"]
    assert not engine.seen


def test_an_engine_with_tls_and_a_key_is_asked_for_its_models(make_tls_engine: Make) -> None:
    engine = make_tls_engine(LISTED)
    said = models_of(engine.target, access(engine.trusted, "of-the-engine"), tls=True)
    assert said is not None
    assert said.names == ("org/chat",)
    assert b"Authorization: Bearer of-the-engine\r\n" in engine.seen[0][0]
    assert models_of(engine.target, access(make_tls_engine().trusted), tls=True) is None
