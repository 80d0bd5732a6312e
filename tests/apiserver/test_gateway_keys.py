"""`herdsman key` and a gateway as a process, on a real API server: keys work, and stop to work, within seconds."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.cli.main import invoke
from gateway.access.keys import new_key
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.gateway_rights import grant_gateway_rights
from tests.support.loop import eventually
from tests.support.relay import Relay
from tests.support.supervising import free_port
from tools.localcluster import LocalCluster


class Running:
    """A gateway, and the texts that it and the commands have printed."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def models(self, **headers: str) -> int:
        """The status of `GET /v1/models`; 0 while the gateway does not listen."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/models", headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@contextlib.contextmanager
def running(kubeconfig: str, namespace: str, log: Path, *options: str) -> Iterator[Running]:
    port = free_port()
    command = [sys.executable, "-m", "automation.cli", "gateway", "--listen", f"127.0.0.1:{port}", *options]
    command += ["-n", namespace, "--keys-namespace", namespace, "--kubeconfig", kubeconfig]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Running(process, port, log)
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def gateway(kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Running]:
    with running(str(kubeconfig), namespace, tmp_path / "gateway.log") as made:
        yield made


def key_command(kubeconfig: Path, namespace: str, *arguments: str) -> int:
    return invoke(["key", *arguments, "--keys-namespace", namespace, "--kubeconfig", str(kubeconfig)])


def test_a_key_works_within_seconds_until_it_is_revoked(
    gateway: Running, kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    eventually(lambda: gateway.models() == 200, what="the gateway to serve without keys")

    assert key_command(kubeconfig, namespace, "create", "ci", "--team", "ml", "--expires", "90d") == 0
    text = capsys.readouterr().out.strip()
    assert text.startswith("hd-")
    eventually(lambda: gateway.models() == 401, what="keys to be required")
    assert gateway.models(Authorization=f"Bearer {text}") == 200
    assert gateway.models(x_api_key=text) == gateway.models(api_key=text) == 200

    assert key_command(kubeconfig, namespace, "create", "ci") == 1
    limits = ("--rpm=60", "--tpm=9000", "--budget-tokens=1000000", "--budget-usd=2.5", "--budget-window=30d")
    assert key_command(kubeconfig, namespace, "create", "second", "--model", "prod/*", *limits, "-o", "json") == 0
    printed = capsys.readouterr()
    second = json.loads(printed.out)
    assert (second["name"], second["models"], second["expires"]) == ("second", ["prod/*"], None)
    assert second["limits"] == ["60 requests/m", "9000 tokens/m", "1000000 tokens/30d", "2.5 USD/30d"]
    assert "a key named `ci` exists" in printed.err

    assert key_command(kubeconfig, namespace, "list") == 0
    listed = capsys.readouterr().out
    assert [line.split()[:1] for line in listed.splitlines()] == [["NAME"], ["ci"], ["second"]]
    assert key_command(kubeconfig, namespace, "list", "-o", "json") == 0
    as_json = capsys.readouterr().out
    assert {each["name"]: each["state"] for each in json.loads(as_json)} == {"ci": "ok", "second": "ok"}

    assert key_command(kubeconfig, namespace, "revoke", "ci") == 0
    eventually(lambda: gateway.models(api_key=text) == 401, what="the revoked key to be refused")
    eventually(lambda: gateway.models(api_key=second["key"]) == 200, what="the other key to work")
    assert key_command(kubeconfig, namespace, "revoke", "ci") == 1
    assert "no key in namespace" in capsys.readouterr().err

    with_secrets = listed + as_json + gateway.log.read_text() + everything_but_secrets(kubeconfig, namespace)
    with_secrets += Path(f"/proc/{gateway.process.pid}/cmdline").read_text()
    for secret in (text, second["key"]):
        assert secret.rpartition("-")[2] not in with_secrets
    for hashed in hashes(kubeconfig, namespace):
        assert hashed not in with_secrets


def test_keys_work_while_the_api_server_is_away(
    kubeconfig: Path, control_plane: LocalCluster, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert key_command(kubeconfig, namespace, "create", "ci") == 0
    text = capsys.readouterr().out.strip()
    relay = Relay(control_plane.server)
    through = relay.kubeconfig(kubeconfig, tmp_path / "relayed")
    with contextlib.closing(relay), running(through, namespace, tmp_path / "gateway.log") as gateway:
        eventually(lambda: gateway.models(api_key=text) == 200, what="the key to work")
        relay.refusing = True
        relay.cut()
        assert key_command(kubeconfig, namespace, "revoke", "ci") == 0
        assert gateway.models(api_key=text) == 200, "the last keys that were read count"
        assert gateway.models() == 401
        relay.refusing = False
        # No key is left.
        eventually(lambda: gateway.models() == 200, what="the keys to be read again")


def test_without_the_right_to_read_keys_only_loopback_is_served(
    kubeconfig: Path, control_plane: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    # The rights concern the namespace of keys, and here the keys are in another one.
    limited = str(grant_gateway_rights(client, control_plane, tmp_path / "kubeconfig"))
    client.close()
    with running(limited, namespace, tmp_path / "open.log") as gateway:
        eventually(lambda: gateway.models() == 200, what="the gateway to serve without keys")
        assert "requests need none" in gateway.log.read_text()
    with running(limited, namespace, tmp_path / "strict.log", "--require-keys") as gateway:
        eventually(lambda: gateway.models() == 503, what="the gateway to refuse requests")
        eventually(lambda: "Could not list the keys" in gateway.log.read_text(), what="the reason in the log")
        assert gateway.models(api_key=new_key()[1]) == 503


def hashes(kubeconfig: Path, namespace: str) -> list[str]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    found: list[dict[str, Any]] = client.list(kinds.SECRETS, namespace)["items"]
    client.close()
    assert found
    return [base64.b64decode(each["data"]["sha256"]).decode() for each in found]


def everything_but_secrets(kubeconfig: Path, namespace: str) -> str:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    text = json.dumps([client.list(kind, namespace) for kind in (kinds.EVENTS, kinds.CONFIG_MAPS)])
    client.close()
    return text
