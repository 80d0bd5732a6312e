"""The gateway in the process of the loop: it is started again after a fault, and ends with the loop."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from automation.cli.main import EXIT_USAGE, invoke
from automation.startup.gateway import GatewayBesideLoop
from gateway.clients.listener_tls import TlsFiles
from gateway.cluster.cluster_routes import ClusterRoutes
from gateway.listen_address import ListenAddress
from gateway.running import GatewayOptions, RunningGateway
from kubeapi.json_types import Json
from tests.support.certificates import own_certificate
from tests.support.loop import eventually
from tests.support.supervising import free_port


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """A kubeconfig of an API server that does not answer."""
    path = tmp_path / "kubeconfig"
    named: Json = {"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}]}
    named |= {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}
    path.write_text(yaml.safe_dump({**named, "users": [{"name": "u", "user": {}}]}))
    return path


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def health(port: int, path: str = "/health") -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


# The exception that ends the gateway's thread is a part of the test.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_it_is_started_again_after_a_fault_and_ends_when_the_loop_ends(kubeconfig: Path, stop: threading.Event) -> None:
    options = GatewayOptions(ListenAddress("127.0.0.1", 0), str(kubeconfig))
    beside = GatewayBesideLoop(options, stop, check_s=0.02, grace_s=1.0)
    beside.start()
    first = beside._gateway
    assert first is not None
    port = first.listen.port
    assert health(port) == 200
    assert health(port, "/ready") == 503, "without the API server it knows no models"

    first._server.loop.call_soon_threadsafe(sys.exit)
    eventually(lambda: not first.is_serving, what="the gateway to end")
    eventually(lambda: health(port) == 200, what="the next gateway")
    assert beside._gateway is not first

    stop.set()
    beside.join()
    assert health(port) == 0


def test_it_serves_by_tls_with_the_certificate_of_the_settings(
    kubeconfig: Path, stop: threading.Event, tmp_path: Path
) -> None:
    pem = own_certificate(tmp_path)
    options = GatewayOptions(ListenAddress("127.0.0.1", 0), str(kubeconfig), tls=TlsFiles(tmp_path / "ca.crt", pem))
    beside = GatewayBesideLoop(options, stop, grace_s=0.0)
    beside.start()
    assert beside._gateway is not None
    url = f"https://127.0.0.1:{beside._gateway.listen.port}/health"
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with urllib.request.urlopen(url, timeout=5, context=trusted) as answer:
        assert answer.status == 200
    stop.set()
    beside.join()


def test_an_address_in_use_is_an_error_at_the_start(kubeconfig: Path, stop: threading.Event) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        options = GatewayOptions(ListenAddress(*other.getsockname()), str(kubeconfig))
        with pytest.raises(OSError, match="in use"):
            GatewayBesideLoop(options, stop).start()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gateway-listen", "0.0.0.0:8080"], "is not a loopback address"),
        (["--gateway-listen", "localhost:1"], "is not an IP address with a port"),
        (["--once"], "once ends the process"),
        (["--gateway-tls-cert", "tls.crt"], "belong together"),
    ],
)
def test_options_that_it_cannot_use_are_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", "--gateway", *arguments]) == EXIT_USAGE
    assert says in capsys.readouterr().err


def test_a_loop_without_a_gateway_does_not_import_one() -> None:
    code = "import sys, automation.loop, automation.cli.run; print([m for m in sys.modules if m.startswith('gateway')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_listener_closes_before_threads_that_wait_for_the_api_server(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = RunningGateway(GatewayOptions(ListenAddress("127.0.0.1", 0), str(kubeconfig)))
    assert health(running.listen.port) == 200
    open_then: list[int] = []
    stop = ClusterRoutes.stop

    def stopped(routes: ClusterRoutes) -> None:
        open_then.append(health(running.listen.port))
        stop(routes)

    monkeypatch.setattr(ClusterRoutes, "stop", stopped)
    running.stop(grace_s=0.5)
    assert open_then == [0]
