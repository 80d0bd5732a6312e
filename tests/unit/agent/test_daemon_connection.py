"""Requests to a daemon that another thread interrupts."""

from __future__ import annotations

import http.client
import socket

import pytest

from agent.server.daemons.http import DaemonConnection
from agent.server.daemons.port import DaemonFailed


def test_a_request_can_be_interrupted_while_it_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    dial = http.client.HTTPConnection.connect

    def dialled(connection: http.client.HTTPConnection) -> None:
        daemon.interrupt()
        dial(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", dialled)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        daemon = DaemonConnection("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(DaemonFailed, match="interrupted"):
            daemon.ask("GET", "/", timeout_s=5.0)
